"""Text becomes batches of token ids.

`corpus` reads sentence pairs of any format, `check` looks for faults, `tokenizer` turns lines into
ids, `store` keeps them on disk, `plan` chooses the sentences of each update, `batches` pads them.
"""
