"""A report of runs in one HTML file: figures and texts gathered within bounds, a template, and a page's scripts.

Reads outputs by pyarrow alone. `page.make_report` is what the command and `Run.report` call.
"""
