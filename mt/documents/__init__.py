"""Documents and texts that stay: subtitles, XLIFF, HTML, protected texts, a glossary.

Translation of lines does without this folder; `translate_file` says what is missing where it is not
installed.
"""
