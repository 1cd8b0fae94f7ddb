"""Text becomes batches: takes data files and a config, gives batches of token ids.

`corpus` reads sentence pairs, `clean` drops the unfit ones, `tokenizer` turns lines into ids and
back, `store` keeps the ids on disk, `batches` plans and pads what the model is fed.
"""
