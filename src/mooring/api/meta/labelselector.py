"""Validation of a label selector that an object has (LabelSelector of meta/v1)."""

from __future__ import annotations

from mooring.api.meta.objectmeta import label_errors
from mooring.apimachinery.names import label_value_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, forbidden, invalid, required


def label_selector_errors(selector: Obj, path: str) -> list[FieldError]:
    """Return the errors of a selector at `path`, in kube-apiserver's words."""
    errors = label_errors(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or []):
        at = f"{path}.matchExpressions[{index}]"
        key, operator, values = (
            expression.get("key", ""),
            expression.get("operator", ""),
            expression.get("values") or [],
        )
        if operator in ("In", "NotIn"):
            if not values:
                errors.append(required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden(f"{at}.values", detail))
        else:
            errors.append(invalid(f"{at}.operator", operator, "not a valid selector operator"))
        errors += [invalid(f"{at}.key", key, detail) for detail in qualified_name_errors(key)]
        errors += [
            invalid(f"{at}.values[{place}]", value, detail)
            for place, value in enumerate(values)
            for detail in label_value_errors(value)
        ]
    return errors
