"""`flashgen doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

from dataclasses import asdict

import click

from flashgen.cli import options
from flashgen.cli.output import print_json, print_line, print_table


@click.command("doctor")
@options.as_json
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Diagnose this machine. Takes seconds, as it compiles a kernel; changes nothing. Exits 1 if a check fails."""
    from flashgen.compiler.cache import cache_dir
    from flashgen.hardware.doctor import doctor

    checks = doctor(cache_dir())
    counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
    if as_json:
        print_json({"checks": [asdict(check) for check in checks], **counts})
    else:
        print_table("", ("check", "", "found"), [(check.name, check.status, check.detail) for check in checks])
        for check in checks:
            if check.next_step:
                print_line(f"{check.name}: {check.next_step}")
        print_line(", ".join(f"{number} {status}" for status, number in counts.items()))
    ctx.exit(1 if counts["fail"] else 0)
