"""What facts are looked up in: texts cut, embedded and counted into shards, searched by words, by vectors, by both."""
