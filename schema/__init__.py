"""JSON Schemas of answers, quintuples and the manifest, generated from the question table (`make gen`)."""
