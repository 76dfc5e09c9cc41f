"""MediaWiki dumps: compressed XML to pages, and wikitext to plain text.

    "<page>..'''Rome''' is a [[city|town]].{{cite}}..</page>"  ->  "Rome is a town."

A page over the budget of bytes, nesting or braces is rejected and named.
"""
