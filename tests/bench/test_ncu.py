"""How Nsight Compute's answers read, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.bench.ncu import NcuRefuses, complaint, find_ncu, kernels_of

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","dram__bytes_read.sum","dram__bytes_write.sum"'
)


def listing(read_unit: str, write_unit: str, *figures: tuple[str, str]) -> str:
    kernels = [
        f'"{number}","4711","python3.11","127.0.0.1","void softmax<float, (int)4>(T1 *, ""x"")","1","7",'
        f'"(128, 1, 1)","(1024, 1, 1)","0","9.0","{read}","{written}"'
        for number, (read, written) in enumerate(figures)
    ]
    units = ",".join(['""'] * 11 + [f'"{read_unit}"', f'"{write_unit}"'])
    return "\n".join(
        [
            "==PROF== Connected to process 4711 (/usr/bin/python3.11)",
            'warming up, "quoted" on a line of its own',
            '==PROF== Profiling "softmax" - 0: 0%....50%....100% - 1 pass',
            "==PROF== Disconnected from process 4711",
            HEAD,
            units,
            *kernels,
            "",
        ]
    )


def test_every_kernel_is_read_with_its_thousands_separators() -> None:
    text = listing("byte", "byte", ("2,147,483,648", "134,217,728"), ("1024", "0"))
    assert list(kernels_of(text)) == [(2147483648.0, 134217728.0), (1024.0, 0.0)]


@pytest.mark.parametrize(
    ("unit", "factor"), [("byte", 1.0), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("Tbyte", 1e12)]
)
def test_units_are_read_column_by_column(unit: str, factor: float) -> None:
    assert list(kernels_of(listing("Kbyte", unit, ("1.5", "2.25")))) == [(1500.0, 2.25 * factor)]


@pytest.mark.parametrize("text", ["", "==WARNING== No kernels were profiled.", HEAD, listing("byte", "byte")])
def test_no_kernel_is_no_error(text: str) -> None:
    assert list(kernels_of(text)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (listing("byte", "byte", ("n/a", "1")), "n/a"),
        (listing("sector", "byte", ("1", "1")), "sector"),
        (listing("byte", "byte", ("1", "1")).replace("dram__bytes_write.sum", "lts__t_bytes.sum"), "not in list"),
    ],
)
def test_what_is_no_number_of_bytes_is_refused(text: str, said: str) -> None:
    with pytest.raises(NcuRefuses, match=rf"ncu gives no bytes of .*{said}"):
        list(kernels_of(text))


def test_a_missing_permission_is_one_for_every_call() -> None:
    text = (
        "==PROF== Connected to process 4711 (/usr/bin/python3.11)\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0.\n==ERROR== The application returned an error code (1).\n"
    )
    with pytest.raises(NcuRefuses, match=r"^ERR_NVGPUCTRPERM - The user does not have permission"):
        complaint(text)
    with pytest.raises(NcuRefuses, match="LibraryNotLoaded"):
        complaint("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n")


def test_other_complaints_are_of_one_call() -> None:
    assert complaint("==PROF== Connected\n==ERROR== LaunchFailed\n") == "LaunchFailed"
    assert complaint("==ERROR== The application returned an error code (1).\n") == ""
    assert complaint(listing("byte", "byte")) == ""


def test_ncu_is_found_on_path_then_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    elsewhere = [(str(tmp_path), "cuda*/bin/ncu"), (str(tmp_path), "nsight/*/ncu")]
    with pytest.raises(NcuRefuses, match=r"no ncu on PATH, nor at .*cuda\*/bin/ncu or .*nsight/\*/ncu"):
        find_ncu(elsewhere)
    for version in ("2025.1.0", "2025.3.1"):
        (tmp_path / "nsight" / version).mkdir(parents=True)
        (tmp_path / "nsight" / version / "ncu").touch()
    assert find_ncu(elsewhere) == str(tmp_path / "nsight" / "2025.3.1" / "ncu")
    on_path = tmp_path / "ncu"
    on_path.touch(mode=0o755)
    assert find_ncu(elsewhere) == str(on_path)
