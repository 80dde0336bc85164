"""Report on one model before and after lowering: collect the results, draw them and write them to one page."""
