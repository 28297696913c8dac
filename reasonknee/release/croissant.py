"""Croissant metadata of a release: what machines that look for datasets read."""

from __future__ import annotations

import json
from typing import Any

from reasonknee.layout import Manifest
from reasonknee.layout.records import CONFIG_DOCS, Field, NiftiFile, Repeated, Scalar, Struct, fields
from reasonknee.layout.terms import NAME, OAI_URL, OPEN_LICENCE_URL, REPO_URL

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_TYPES = {
    "string": "sc:Text",
    "int8": "cr:Int8",
    "int32": "cr:Int32",
    "float64": "cr:Float64",
    "binary": "sc:Text",
}


def croissant_text(manifest: Manifest) -> str:
    repo = {
        "@type": "cr:FileObject",
        "@id": "repo",
        "name": "repo",
        "description": "The Hub repository; manifest.json in it has the sha256 of every file.",
        "contentUrl": REPO_URL,
        "encodingFormat": "git+https",
        "sha256": "see manifest.json",
    }
    file_sets = [
        {
            "@type": "cr:FileSet",
            "@id": f"{config}-files",
            "containedIn": {"@id": "repo"},
            "encodingFormat": "application/x-parquet",
            "includes": f"{config}/*.parquet",
        }
        for config in manifest.configs
    ]
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": NAME,
        "description": "3D grounded reasoning on knee MRI: volume, question, 3D box, reasoning steps and "
        "structured MOAKS grades.",
        "version": manifest.release_version,
        "datePublished": "2025-10-23",
        "creator": {
            "@type": "sc:Organization",
            "name": "rajpurkarlab",
            "url": "https://huggingface.co/rajpurkarlab",
        },
        "license": OAI_URL if manifest.restricted else OPEN_LICENCE_URL,
        "url": REPO_URL,
        "citeAs": "3DReasonKnee, arXiv 2510.20967",
        "rai:dataCollection": "Expert MOAKS readings of the Osteoarthritis Initiative; boxes from a "
        "segmentation network's masks.",
        "rai:dataLimitations": "Boxes are pseudo-labels; reasoning is generated from the grades and states "
        "the answer; one sequence, one study.",
        "rai:dataBiases": "Participants at risk of knee osteoarthritis in North America; grades are skewed "
        "to 0.",
        "rai:personalSensitiveInformation": "De-identified knee MRI; OAI's participant codes and study "
        "folders (scan dates) are kept.",
        "rai:dataUseCases": "Training and evaluation of vision-language models that ground their answers; "
        "not for clinical use.",
        "distribution": [repo, *file_sets],
        "recordSet": [_record_set(config) for config in manifest.configs],
    }
    return json.dumps(described, indent=1) + "\n"


def _record_set(config: str) -> dict[str, Any]:
    def source(column: str, path: list[str]) -> dict[str, Any]:
        source: dict[str, Any] = {"fileSet": {"@id": f"{config}-files"}, "extract": {"column": column}}
        if path:
            source["transform"] = {"jsonPath": ".".join(path)}
        return source

    def convert(field: Field, prefix: str, column: str, path: list[str]) -> dict[str, Any]:
        name = f"{prefix}/{field.name}"
        kind: Any = field.type
        described: dict[str, Any] = {"@type": "cr:Field", "@id": name, "description": field.doc}
        if isinstance(kind, Repeated):
            described["repeated"] = True
            kind = kind.of
        if isinstance(kind, Struct):
            described["subField"] = [convert(f, name, column, [*path, f.name]) for f in kind.fields]
        elif isinstance(kind, NiftiFile):
            described |= {"dataType": "sc:Text", "source": source(column, ["bytes"])}
        elif isinstance(kind, Scalar):
            described |= {"dataType": _TYPES[kind.name], "source": source(column, path)}
        return described

    listed = [convert(f, config, f.name, []) for f in fields(config)]
    return {"@type": "cr:RecordSet", "@id": config, "description": CONFIG_DOCS[config], "field": listed}
