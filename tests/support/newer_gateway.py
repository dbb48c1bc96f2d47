"""Gateways of later releases, for tests of updates: they know more migrations than this one.

Run: ``python -m tests.support.newer_gateway RELEASE ARGUMENTS...`` with those of ``guard gateway``.

*next* expands every table, fills the new column of events in batches, and then relies on it; *last*
takes away what the present release needs. ``PAUSE_S`` in the environment is how long a batch takes.
``serve`` prints the port before the schema is touched.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from guard.gateway import server
from guard.gateway.cli.main import gateway
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.schema import Migration

PRESENT = schema.newest()
NEXT = PRESENT + 3
LAST = PRESENT + 4

_EXPAND = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
    AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1
  LOOP EXECUTE format('ALTER TABLE %I ADD COLUMN %I text', name, name || '_added'); END LOOP;
END $$;
CREATE FUNCTION fill_added() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN NEW.events_added := coalesce(NEW.events_added, 'by trigger'); RETURN NEW; END $$;
CREATE TRIGGER events_fill BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION fill_added();
"""
_FILL = """
UPDATE events SET events_added = 'by batch' WHERE event_seq IN (
  SELECT event_seq FROM events WHERE events_added IS NULL ORDER BY event_seq LIMIT 50)
  AND (SELECT true FROM pg_sleep({pause_s}))
"""
_RELY = "ALTER TABLE events ADD CONSTRAINT events_are_filled CHECK (events_added IS NOT NULL)"
_CONTRACT = """
ALTER TABLE events DROP CONSTRAINT events_are_filled;
DROP TRIGGER events_fill ON events;
DROP FUNCTION fill_added();
"""


def migrations(release: str) -> tuple[Migration, ...]:
    """Return what a release knows beyond the present one."""
    pause_s = float(os.environ.get("PAUSE_S", "0"))
    more = (
        Migration("expand every table", _EXPAND),
        Migration("fill the new column", fill=_FILL.format(pause_s=pause_s)),
        Migration("rely on the new column", _RELY),
    )
    if release == "last":
        more += (Migration("take the trigger away", _CONTRACT, oldest=NEXT),)
    return more


def main(release: str, *arguments: str) -> None:
    """Run a command of a later release."""
    schema.MIGRATIONS += migrations(release)
    bind = server.bind

    def bind_and_tell(host: str, port: int) -> Any:
        listening = bind(host, port)
        print(server.base_url(listening), flush=True)
        return listening

    server.bind = bind_and_tell
    gateway(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
