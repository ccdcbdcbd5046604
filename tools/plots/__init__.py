"""Pictures and tables of what `quantspec bench`, `eval` and `roofline` measure.

reports.py reads the JSON, style.py is how pictures look, speed.py, fidelity.py and roofline.py draw
them, tables.py writes Markdown. Only style.py and those that draw need matplotlib.
"""
