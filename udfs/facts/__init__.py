"""Facts of a sample: the nodes of its graph, and the pairs of them that are judged."""
