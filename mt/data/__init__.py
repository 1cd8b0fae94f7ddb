"""Text becomes batches: takes the data section of a config, gives batches of token ids.

`corpus` reads sentence pairs from `text_files`, `table_files`, `xml_files` or a `datasets_source`;
`check` looks for faults before training. `tokenizer` turns lines into ids and back, `store` drops
pairs that are unfit for training and keeps the ids on disk, `plan` chooses the sentences of each
update, `batches` pads them.
"""
