"""Texts that stay, and the parts of documents (subtitles, XLIFF, HTML) beside their lines."""
