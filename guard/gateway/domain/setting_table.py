"""The settings of an organisation as a table, read from the record that holds them.

Command line, dashboard, admin API and files of ``apply`` all use it, so a field that is added to
the record is a setting everywhere.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn

import msgspec
from msgspec import Struct

from guard.core import wire
from guard.core.mistaken import did_you_mean
from guard.core.visible import quoted
from guard.core.written_numbers import read_dollars, read_duration, written_duration
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.domain.windows import checked_zone

Kind = Literal["flag", "number", "choice", "zone"]
Value = bool | int | str
_FLAGS: Final = {
    "1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False,
    "off": False,
}  # fmt: skip


class OrganisationSetting(Struct, frozen=True):
    """One setting.

    Attributes:
        name: of the field.
        kind: a flag, a whole number, a choice or a time zone.
        default: its value unless it is set.
        says: its description, a sentence or two.
        choices: the values of a choice.
        low, high: the bounds of a number.
    """

    name: str
    kind: Kind
    default: bool | int | str
    says: str
    choices: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None

    @property
    def is_time(self) -> bool:
        """Whether it is a length of time; in messages, in milliseconds."""
        return self.name.endswith("_ms")

    @property
    def is_money(self) -> bool:
        """Whether it is an amount of money; in messages, in nano-dollars."""
        return self.name.endswith("_nanousd")

    @property
    def written_name(self) -> str:
        """Its name for people: without the unit of messages."""
        return self.name.removesuffix("_ms").removesuffix("_nanousd")

    def write(self, value: Value) -> str:
        """Return a value as text that :meth:`read_written` reads."""
        if isinstance(value, bool):
            return str(value).lower()
        if self.is_time:
            return written_duration(int(value))
        return wire.dollars(int(value)) if self.is_money else str(value)

    def read_written(self, text: str) -> Value:
        """Return a value as people write it: a length of time as 30s, money as $0.50.

        Raises:
            ValueError: not a value of this setting; the text says what is.
        """
        if not self.is_time and not self.is_money:
            return self.read(text)
        try:
            number = read_duration(text) if self.is_time else read_dollars(text, or_nothing=True)
        except ValueError as exc:
            raise ValueError(f"{self.written_name}: {exc}") from None
        low, high = self.low or 0, self.high
        if number < low or (high is not None and number > high):
            bounds = f"from {self.write(low)}" + ("" if high is None else f" to {self.write(high)}")
            raise ValueError(f"{self.written_name} takes {bounds}, not {text.strip()}")
        return number

    @property
    def takes(self) -> str:
        """Its values, in words."""
        if self.kind == "flag":
            return "true or false"
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind == "zone":
            return "an IANA time zone, such as Europe/Berlin"
        if self.high is None:
            return "a whole number" if self.low is None else f"a whole number from {self.low} on"
        return f"a whole number from {self.low or 0:,} to {self.high:,}"

    @property
    def schema(self) -> dict[str, Any]:
        """Its values, as a JSON schema."""
        if self.kind == "flag":
            return {"type": "boolean"}
        if self.kind == "choice":
            return {"enum": list(self.choices)}
        if self.kind == "zone":
            return {"type": "string"}
        bounds = {"minimum": self.low or 0, "maximum": self.high}
        return {"type": "integer", **{k: v for k, v in bounds.items() if v is not None}}

    def read(self, text: str) -> bool | int | str:
        """Return a value that is written as text.

        Raises:
            ValueError: not a value of this setting; the text says what is.
        """
        bare = text.strip().lower()
        if self.kind == "zone":
            return checked_zone(text.strip())
        if self.kind == "flag":
            return read_flag(text, f"{self.name} takes ")
        if self.kind == "choice" and bare in self.choices:
            return bare
        if self.kind == "number" and re.fullmatch(r"\d{1,18}", bare.replace("_", "")):
            number = int(bare.replace("_", ""))
            if (self.low or 0) <= number and (self.high is None or number <= self.high):
                return number
        raise ValueError(f"{self.name} takes {self.takes}")


def read_flag(text: str, before: str = "") -> bool:
    """Return whether a text says yes.

    Args:
        text: true or false, as people write it.
        before: the beginning of the error's text.

    Raises:
        ValueError: it is neither.
    """
    found = _FLAGS.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{before}true or false")
    return found


def _read(record: type[Struct]) -> dict[str, OrganisationSetting]:
    """Return the settings that a record holds, described by the sentences of its docstring."""
    sentences = dict(
        re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(record) or "", re.MULTILINE)
    )
    info = msgspec.inspect.type_info(record)
    assert isinstance(info, msgspec.inspect.StructType)
    return {
        field.name: _setting(
            field.name,
            field.type,
            field.default,
            " ".join(sentences.get(field.name, "").replace("``", "").split()),
        )
        for field in info.fields
    }


def _setting(name: str, kind: msgspec.inspect.Type, default: Any, says: str) -> OrganisationSetting:
    if isinstance(kind, msgspec.inspect.LiteralType):
        return OrganisationSetting(
            name, "choice", default, says, tuple(str(each) for each in kind.values)
        )
    if isinstance(kind, msgspec.inspect.BoolType):
        return OrganisationSetting(name, "flag", default, says)
    if isinstance(kind, msgspec.inspect.StrType):
        return OrganisationSetting(name, "zone", default, says)
    assert isinstance(kind, msgspec.inspect.IntType), f"{name} is of a kind that has no form"
    return OrganisationSetting(name, "number", default, says, low=kind.ge, high=kind.le)


SETTINGS: Final = _read(OrganisationSettings)


def setting(name: str) -> OrganisationSetting:
    """Return a setting.

    Raises:
        ValueError: there is none of this name; the text names the nearest.
    """
    return SETTINGS.get(name.strip().replace("-", "_")) or _unknown(name, SETTINGS)


def written_setting(name: str) -> tuple[OrganisationSetting, Callable[[str], Value]]:
    """Return a setting by its name for people, and the function that reads its value.

    By its name in messages, which has the unit, its value is a plain number.

    Raises:
        ValueError: there is none of this name; the text names the nearest.
    """
    by_name = {each.written_name: each for each in SETTINGS.values()}
    found = by_name.get(name.strip().replace("-", "_"))
    if found is not None:
        return found, found.read_written
    if name.strip().replace("-", "_") in SETTINGS:
        found = setting(name)
        return found, found.read
    return _unknown(name, by_name)


def _unknown(name: str, names: Iterable[str]) -> NoReturn:
    meant = did_you_mean(name, names) or f"; there are {', '.join(names)}"
    raise ValueError(f"there is no setting {quoted(name)}{meant}")


def changed(
    known: OrganisationSettings, changes: Mapping[str, bool | int | str]
) -> OrganisationSettings:
    """Return settings in which some have other values; all others stay as they are.

    Raises:
        ValueError: no such setting, or a value that it does not take.
    """
    fields: dict[str, Any] = msgspec.to_builtins(known)
    for name, value in changes.items():
        found = setting(name)
        try:
            wire.convert({found.name: value}, OrganisationSettings)
        except msgspec.ValidationError:
            raise ValueError(f"{found.name} takes {found.takes}") from None
        if found.kind == "zone":
            checked_zone(str(value))
        fields[found.name] = value
    return wire.convert(fields, OrganisationSettings)
