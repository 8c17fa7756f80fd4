"""What can be asked over HTTP: one table, of which routes, checks of bodies and the OpenAPI document are made."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, NamedTuple

from .guard import Refused
from .values import BYTES, JSON

Schema = dict[str, Any]

REQUIRED: Final = object()


class Operation(NamedTuple):
    """What a method of a path does: the function that does it, the statuses it answers with, and what it takes."""

    method: str
    path: str
    name: str
    statuses: tuple[int, ...]
    query: tuple[str, ...] = ()
    body: dict[str, Any] | None = None  # the fields of a JSON object, with what one that is left out means


OPERATIONS: Final = (
    Operation("GET", "/keys/{key}", "read", (200, 304, 404, 406, 412)),
    Operation("PUT", "/keys/{key}", "store", (201, 204, 412, 507), ("expire", "tag")),
    Operation("DELETE", "/keys/{key}", "delete", (204, 404, 412)),
    Operation("GET", "/keys", "find", (200,), ("tag", "match", "prefix", "glob", "after", "limit")),
    Operation("POST", "/keys/bulk/get", "get_many", (200,), (), {"keys": REQUIRED}),
    Operation("POST", "/keys/bulk/set", "set_many", (200,), (), {"items": REQUIRED, "expire": None, "tags": None}),
    Operation("POST", "/keys/bulk/delete", "delete_many", (200,), (), {"keys": REQUIRED}),
    Operation("POST", "/keys/{key}/incr", "incr", (200, 404, 409), (), {"delta": 1, "default": 0}),
    Operation("POST", "/keys/{key}/touch", "touch", (204, 404), (), {"expire": REQUIRED}),
    Operation("POST", "/invalidate", "invalidate", (200,), (), {"tags": REQUIRED, "match": "any"}),
    Operation("GET", "/tags", "tags", (200,)),
    Operation("GET", "/stats", "stats", (200,)),
    Operation("GET", "/metrics", "metrics", (200, 501)),
    Operation("GET", "/events", "events", (200,)),
    Operation("GET", "/health", "health", (200, 503)),
    Operation("GET", "/openapi.json", "describe", (200,)),
    Operation("GET", "/", "page", (200,)),
)
_VALUE: Final = (BYTES, "text/plain", JSON)
_MEDIA: Final = {"read": _VALUE, "metrics": _VALUE[1:2], "events": ("text/event-stream",), "page": ("text/html",)}

_TEXT: Final[Schema] = {"type": ["string"]}
_KEY: Final[Schema] = {"type": ["string", "object"], "description": 'Text, or {"base64": "…"} if it is not UTF-8.'}
_ITEM: Final[Schema] = {"type": ["object"], "description": 'A "key", and its "value" as JSON, or bytes in "base64".'}
_OPTIONAL: Final[Schema] = {"type": ["number", "null"]}
_SCHEMAS: Final[dict[str, Schema]] = {  # of fields and parameters
    "keys": {"type": ["array"], "items": _KEY},
    "items": {"type": ["array"], "items": _ITEM},
    "tags": {"type": ["array"], "items": _TEXT},
    "tag": {"type": ["array"], "items": _TEXT},
    "match": {"type": ["string"], "enum": ["any", "all"]},
    "expire": {**_OPTIONAL, "description": "Seconds from now; null for never."},
    "delta": {"type": ["number"]},
    "default": {**_OPTIONAL, "description": "What a missing key counts as; with null it is an error."},
    "prefix": _TEXT,
    "glob": _TEXT,
    "after": {**_TEXT, "description": 'The "next" of the page before.'},
    "limit": {"type": ["integer"], "minimum": 1, "default": 100},
}
_KINDS: Final[dict[str, Any]] = {
    "string": str,
    "array": list,
    "object": dict,
    "number": int | float,
    "null": type(None),
}


def fields_of(operation: Operation, body: Any) -> list[Any]:
    """Return the fields of a body in the order of the table; raise Refused for a body that is not as it says."""
    known = operation.body or {}
    if not isinstance(body, dict) or not known.keys() >= body.keys():
        raise Refused(400, f"the body must be an object with no other fields than {', '.join(known)}")
    for name, default in known.items():
        if name not in body and default is REQUIRED:
            raise Refused(400, f"the body has no {name!r}")
        if name in body and not _fits(_SCHEMAS[name], body[name]):
            of = f" of {' or '.join(_SCHEMAS[name]['items']['type'])}s" if "items" in _SCHEMAS[name] else ""
            raise Refused(400, f"{name!r} must be of type {' or '.join(_SCHEMAS[name]['type'])}{of}")
    return [body.get(name, default) for name, default in known.items()]


def _fits(schema: Schema, value: Any) -> bool:
    if isinstance(value, bool) or not any(isinstance(value, _KINDS[name]) for name in schema["type"]):
        return False
    return not isinstance(value, list) or all(_fits(schema["items"], member) for member in value)


def document(summaries: dict[str, str], version: str) -> Schema:
    """Return the OpenAPI document; `summaries`: what each operation does, by its name."""
    paths: Schema = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = {
            "operationId": each.name,
            "summary": summaries[each.name],
            **_described(each),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "diskcache_like", "version": version},
        "paths": paths,
        "components": {"securitySchemes": {"password": {"type": "http", "scheme": "bearer"}}},
        "security": [{"password": []}, {}],
    }


def _described(operation: Operation) -> Schema:
    in_path = [{"name": "key", "in": "path", "required": True, "schema": _TEXT}] * ("{key}" in operation.path)
    asked = [{"name": name, "in": "query", "schema": _SCHEMAS[name]} for name in operation.query]
    answers: Schema = {str(status): {"description": HTTPStatus(status).phrase} for status in operation.statuses}
    if "200" in answers:
        answers["200"]["content"] = {kind: {} for kind in _MEDIA.get(operation.name, (JSON,))}
    answers["default"] = {"description": 'What is wrong: {"error": "…"}', "content": {JSON: {}}}
    found: Schema = {"parameters": [*in_path, *asked], "responses": answers}
    if operation.body is not None:
        required = [name for name, default in operation.body.items() if default is REQUIRED]
        fields = {name: _SCHEMAS[name] for name in operation.body}
        schema = {"type": "object", "properties": fields, "required": required}
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    elif operation.method == "PUT":
        found["requestBody"] = {"required": True, "content": {kind: {} for kind in _VALUE}}
    return found
