"""The report: a run or a profile as one HTML file that needs nothing else.

`view` says what a report is made of, `evidence` and `replayed` fill it, `plots` and `page` draw it.
"""
