"""Base of all sections: no unknown keys, no values of another type."""

from __future__ import annotations

from typing import Any, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """Base of all sections of a configuration. An unknown key is refused, and a section without
    content is as if it were left out.

    Values are not converted: ``true`` is no number, ``"5"`` and ``3.0`` are no whole numbers.
    Fields of a type that YAML does not have, such as paths, are declared with `strict=False`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_not_there(cls, data: Any) -> Any:
        """Drop the keys of empty sections: YAML reads ``tiers:`` alone as null."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        return {key: value for key, value in data.items() if value is not None or cls._needs(key)}

    @classmethod
    def _needs(cls, key: Any) -> bool:
        """True if null is a mistake for the key, so that it is kept and validation reports it."""
        field = cls.model_fields.get(key)
        return field is None or field.is_required() or not _is_section(field.annotation)


def _is_section(annotation: Any) -> bool:
    """True if the annotation is a mapping: a schema or a dict."""
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, (BaseModel, dict))
