"""HTML of what a notebook shows: code, tables and charts, as text.

It knows no Program and no plan: their classes give it lines and rows. Colours follow
the page's, so they fit a light and a dark one; lines are linked by CSS, without
scripts, so a page that is saved or not trusted works the same. Modules of this package
are imported only where an object is shown.
"""
