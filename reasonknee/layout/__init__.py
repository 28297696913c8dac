"""How it is written: the fields of every config and file, from which Arrow, Features, JSON Schema and
Croissant follow; ids and splits; the manifest.

`strict_text` reads CSV and JSON that come from elsewhere.
"""

from reasonknee.layout.manifest import Manifest, Shard, read_manifest
from reasonknee.layout.places import release_folder
from reasonknee.layout.records import CONFIGS, PER_VOLUME, SIDES
from reasonknee.layout.splits import SPLITS, patient_id, quintuple_id, volume_id

__all__ = [
    "CONFIGS",
    "PER_VOLUME",
    "SIDES",
    "SPLITS",
    "Manifest",
    "Shard",
    "patient_id",
    "quintuple_id",
    "read_manifest",
    "release_folder",
    "volume_id",
]
