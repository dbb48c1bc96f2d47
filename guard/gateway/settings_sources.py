"""Where a gateway's settings come from: options over environment over file over defaults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from guard.core.mistaken import did_you_mean
from guard.core.wire import dollars
from guard.core.written_numbers import read_dollars, read_duration, written_duration
from guard.gateway.domain.setting_table import read_flag
from guard.gateway.settings import DatabaseUrl, GatewaySettings, SettingError, database_of

PREFIX: Final = "GUARD_GATEWAY_"
CONFIG_VARIABLE: Final = "GUARD_GATEWAY_CONFIG"

Kind = Literal["flag", "number", "size", "time", "price", "text", "path", "list"]
_KINDS: Final[dict[str, Kind]] = {
    "bool": "flag",
    "int": "number",
    "str": "text",
    "str | None": "text",
    "Path": "path",
    "Path | None": "path",
    "Path | str": "path",
    "tuple[str, ...]": "list",
}
_KINDS_BY_NAME: Final[dict[str, Kind]] = {
    "_bytes": "size",
    "_ms": "time",
    "_per_mtok": "price",
}
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE: Final = re.compile(r"(\d+) *([kmg]?)(i?b)?", re.IGNORECASE)
_FIELD: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
# An orchestrator sets these for a service that is called guard-gateway.
_OF_AN_ORCHESTRATOR: Final = re.compile(r"GUARD_GATEWAY_(SERVICE_|PORT_\d)")


class SettingsError(ValueError):
    """A setting cannot be read; the text names its source and describes the accepted values."""


@attrs.frozen
class Setting:
    """One row of the table.

    Attributes:
        field: of :class:`GatewaySettings`.
        name: in a file.
        kind: how its text is read.
        text: its purpose.
        default: of ``guard gateway serve``.
        option: of the command line.
        old: an older name of a file, for a plain number of milliseconds or nano-dollars.
        secret: whether its value is shown nowhere.
    """

    field: str
    name: str
    kind: Kind
    text: str
    default: Any
    option: str
    old: Setting | None = None
    secret: bool = False

    @property
    def variable(self) -> str:
        """The variable of the environment."""
        return PREFIX + self.name.upper()

    @property
    def names(self) -> list[Setting]:
        """This setting under all its names, the new one first."""
        return [self] if self.old is None else [self, self.old]

    @property
    def shown_default(self) -> str:
        """The default as an operator would write it; empty when there is none."""
        return self.show(self.default)

    def show(self, value: Any) -> str:
        """Return a value as an operator would write it; empty when there is none.

        For a secret this is only ``set``; a database's address is shown without the password.
        """
        if value is None or value == ():
            return ""
        if self.secret:
            return "set"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, DatabaseUrl):
            return f"postgresql://{value.host}"
        if isinstance(value, tuple):
            return ", ".join(value)
        if self.kind == "time":
            return written_duration(value)
        return dollars(value) if self.kind == "price" else str(value)

    def read(self, given: Any) -> Any:
        """Return a value for :class:`GatewaySettings`.

        Raises:
            ValueError: with a description of the accepted values.
        """
        match self.kind:
            case "flag":
                return read_flag(str(given))
            case "number":
                return _number(given)
            case "size":
                return _size(given)
            case "time":
                return read_duration(str(given))
            case "price":
                return read_dollars(str(given))
            case "path":
                return database_of(_text(given))
            case "list":
                return _list(given)
            case "text":
                return _text(given)


def table() -> list[Setting]:
    """Return all settings, in the order of the documentation."""
    return [_of_field(field) for field in attrs.fields(GatewaySettings)]


def _of_field(field: Any) -> Setting:
    default = field.default if field.metadata["served"] is None else field.metadata["served"]
    setting = Setting(
        field=field.name,
        name=field.name,
        kind=_KINDS[str(field.type)],
        text=field.metadata["text"],
        default=default,
        option="--" + (field.metadata["option"] or field.name.replace("_", "-")),
        secret=field.metadata["secret"],
    )
    for ending, kind in _KINDS_BY_NAME.items():
        if not field.name.endswith(ending):
            continue
        if kind == "size":
            return attrs.evolve(setting, kind=kind)
        name = field.name.removesuffix(ending) + ("_price" if kind == "price" else "")
        option = "--" + name.replace("_", "-")
        return attrs.evolve(setting, name=name, kind=kind, option=option, old=setting)
    return setting


def load(
    options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None
) -> GatewaySettings:
    """Merge the sources.

    Args:
        options: of the command line by field; None and () mean "not given".
        environ: the environment.
        config: a TOML file; ``GUARD_GATEWAY_CONFIG`` when None.

    Raises:
        SettingsError: a value, or the file, cannot be read.
    """
    values = {each.field: each.default for each in table()}
    sources: dict[str, str] = {}
    for setting, value, source, named in _given(options, environ, config):
        sources[setting.field] = source
        try:
            values[setting.field] = named.read(value)
        except (TypeError, ValueError) as exc:
            said = f": {exc}" if named.kind in ("time", "price") else f" takes {exc}"
            raise SettingsError(f"{source}{said}{_hint(value)}") from None
    try:
        return GatewaySettings(**values)
    except SettingError as exc:
        raise explained(exc, sources) from None


def explained(exc: SettingError, sources: Mapping[str, str]) -> SettingsError:
    """Return the same error with each setting called as it was given: an option, a variable.

    Args:
        exc: the error.
        sources: where those were given that were, by field.
    """
    source = sources.get(exc.name, exc.name)
    is_time = exc.name.endswith("_ms") and "ms" not in source.lower()
    named = {each.field: each.option if source.startswith("--") else
             each.variable if source.startswith(PREFIX) else each.name
             for each in table()}  # fmt: skip
    says = "takes more than 0" if is_time else exc.says
    return SettingsError(f"{source} {_FIELD.sub(lambda m: named.get(m[0], m[0]), says)}")


def origins(
    options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None
) -> dict[str, str]:
    """Return where each setting was given that was, by field; the arguments are :func:`load`'s.

    Raises:
        SettingsError: the file cannot be read.
    """
    places: dict[str, str] = {}
    for setting, _, source, named in _given(options, environ, config):
        kind = {named.option: "command line", named.variable: "environment"}.get(source, "file")
        places[setting.field] = f"{kind}: {source}"
    return places


def _given(
    options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> Iterator[tuple[Setting, Any, str, Setting]]:
    """Yield each setting that was given: its value, its source, the name that was used for it."""
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    written = {} if config is None else _file(config)
    sources: tuple[Callable[[Setting], tuple[Any, str]], ...] = (
        lambda each: (options.get(each.name), each.option),
        lambda each: (environ.get(each.variable) or None, each.variable),
        lambda each: (written.get(each.name), f"{config}: {each.name}"),
    )
    for setting in table():
        found = ((*of(named), named) for of in sources for named in setting.names)
        first = next((each for each in found if each[0] not in (None, ())), None)
        if first is not None:
            yield setting, *first


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each ``GUARD_GATEWAY_*`` variable that is not a setting."""
    known = {CONFIG_VARIABLE, *(each.variable for each in _all_names())}
    return [
        f"{name} is not a setting{did_you_mean(name, known, 1)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known and not _OF_AN_ORCHESTRATOR.match(name)
    ]


def _file(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise SettingsError(f"{path}: {exc.strerror or exc}") from None
    except ValueError as exc:
        raise SettingsError(f"{path}: {exc}") from None
    written = {name.replace("-", "_"): value for name, value in found.items()}
    known = {each.name for each in _all_names()}
    for name in written:
        if name not in known:
            raise SettingsError(f"{path}: {name} is not a setting{did_you_mean(name, known, 1)}")
    return written


def _all_names() -> list[Setting]:
    return [named for setting in table() for named in setting.names]


def _hint(value: Any) -> str:
    if isinstance(value, str) and value.startswith("tcp://"):
        return (
            ". This value is an orchestrator's, for a service called guard-gateway: set "
            "enableServiceLinks: false in the pod, or call the service something else"
        )
    return ""


def _text(given: Any) -> str:
    if not isinstance(given, str | Path) or not str(given).strip():
        raise ValueError("a text that is not empty")
    return str(given).strip()


def _number(given: Any) -> int:
    try:
        if isinstance(given, bool | float):
            raise ValueError
        return int(given)
    except (TypeError, ValueError):
        raise ValueError("a whole number, such as 100") from None


def _size(given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise ValueError("a number of bytes, such as 33554432 or 32MiB")
    return int(found[1]) * _UNITS[found[2].lower()]


def _list(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        given = re.split(r"[\s,]+", given)
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError("a list of texts")
    return tuple(each.strip() for each in given if each.strip())
