"""Gluon's names, as the kernels use them, on the machine of machine.py."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton.experimental
import triton.experimental.gluon.language.nvidia.hopper
import triton.experimental.gluon.nvidia.hopper
import triton.language as tl

from tests.kernels.gluon.carried import Loop, carrying_code
from tests.kernels.gluon.machine import Barrier, Fault, Machine, Matmul, Tile, same_bits

_HERE = threading.local()  # of a warp group's thread: its machine, program and matmuls under way
_PACKAGE = "triton.experimental.gluon"


@dataclass
class Program:
    """One program of a grid: where it stands, and the machine that runs it."""

    index: int
    count: int
    machine: Machine
    tiles: list[Tile] = field(default_factory=list)


class Ring:
    """Tiles of shared memory, or barriers, addressed by slot. Memory that nothing was written to is NaN."""

    def __init__(self, shape: list[int], slots: list[Any]) -> None:
        self.type, self._slots = SimpleNamespace(shape=[int(each) for each in shape]), slots

    def index(self, slot: Any) -> Any:
        return self._slots[int(slot)]


@dataclass
class Descriptor:
    """A TMA descriptor of a tensor of four dims in blocks."""

    base: torch.Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    layout: Any = None

    def __post_init__(self) -> None:
        if any(stride * self.base.element_size() % 16 for stride in self.strides[:3]) or self.base.data_ptr() % 16:
            raise Fault("TMA describes only what is aligned to 16 bytes")

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def block_type(self) -> SimpleNamespace:
        nbytes = math.prod(self.block_shape) * self.base.element_size()
        return SimpleNamespace(nbytes=nbytes, shape=self.block_shape)

    def part(self, coordinates: list[Any], tile: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What of the block lies in the tensor: there, and in a tile, whose dims are the block's less leading 1s."""
        left_out = len(self.block_shape) - tile.dim()
        if [1] * left_out + list(tile.shape) != self.block_shape:
            raise Fault(f"a tile {list(tile.shape)} of shared memory does not hold a block {self.block_shape}")
        there, here = self.base, tile[(None,) * left_out]
        for dim, (start, length) in enumerate(zip(map(int, coordinates), self.block_shape)):
            first, end = (min(max(each, 0), self.base.shape[dim]) for each in (start, start + length))
            there = there.narrow(dim, first, end - first)
            here = here.narrow(dim, first - start if end > first else 0, end - first)
        return there, here


class Pointer:
    """The address of a tensor's elements; offsets count elements."""

    def __init__(self, base: torch.Tensor, offsets: Any = 0) -> None:
        self.base, self.offsets = base, offsets

    def __add__(self, offsets: Any) -> Pointer:
        return Pointer(self.base, self.offsets + offsets)

    def _flat(self, count: int) -> torch.Tensor:
        storage = self.base.untyped_storage()
        return torch.empty(0, dtype=self.base.dtype).set_(storage)  # type: ignore[call-overload]

    def write(self, value: torch.Tensor, mask: torch.Tensor) -> None:
        index = self.base.storage_offset() + torch.broadcast_to(torch.as_tensor(self.offsets), value.shape)[mask]
        self._flat(value.numel())[index.long()] = value[mask].to(self.base.dtype)

    def read(self, mask: Any, other: float) -> torch.Tensor:
        index = self.base.storage_offset() + torch.as_tensor(self.offsets)
        held = torch.full(index.shape, other, dtype=self.base.dtype)
        mask = torch.broadcast_to(torch.as_tensor(mask), index.shape)
        held[mask] = self._flat(held.numel())[index[mask].long()]
        return held


class Kernel:
    """A kernel, or a function that kernels call."""

    def __init__(self, function: Any) -> None:
        self.fn, self.__name__ = function, function.__name__
        self._bound: Any = None

    def __call__(self, *args: Any) -> Any:
        return self._rebound()(*args)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            names = self.fn.__code__.co_varnames[: self.fn.__code__.co_argcount]
            given = {name: _value(value) for name, value in kwargs.items() if name in names}
            for index in range(grid[0]):
                _HERE.program = Program(index, grid[0], Machine(seed=SEED.seed * 7919 + index))
                _HERE.matmuls = []
                self._rebound()(*map(_value, args), **given)

        return launch

    def _rebound(self) -> Any:
        """The function with what it finds in its module replaced by this module's counterparts."""
        if self._bound is None:
            held = {name: _global(value) for name, value in self.fn.__globals__.items()} | {"Loop": Loop}
            self._bound = types.FunctionType(carrying_code(self.fn), held, self.fn.__name__, self.fn.__defaults__)
        return self._bound


SEED = SimpleNamespace(seed=0)  # of the next launches


def _global(value: Any) -> Any:
    if isinstance(value, tl.constexpr):
        return value.value
    if type(value).__name__ == "ConstexprFunction":
        return lambda *args: None  # layouts
    return gl if value is tl else value


def _value(value: Any) -> Any:
    """An argument of a launch as the kernel sees it: sizes are 32-bit integers."""
    if isinstance(value, torch.Tensor):
        return Pointer(value)
    return torch.tensor(value, dtype=torch.int32) if isinstance(value, int) and not isinstance(value, bool) else value


def jit(function: Any = None, **options: Any) -> Any:
    return Kernel(function) if function is not None else Kernel


def _program() -> Program:
    program: Program = _HERE.program
    return program


def _warp_specialize(partitions: list[Any], worker_num_warps: list[int], worker_num_regs: list[int]) -> None:
    assert len(worker_num_warps) == len(worker_num_regs) == len(partitions) - 1
    program = _program()

    def group(function: Kernel, arguments: tuple[Any, ...]) -> Any:
        def run() -> None:
            _HERE.program, _HERE.matmuls, _HERE.stores = program, [], []
            function(*arguments)
            if _HERE.matmuls or _HERE.stores:
                raise Fault("a warp group ends with matmuls or copies under way")

        return run

    program.machine.run([group(function, arguments) for function, arguments in partitions])


def _allocate(dtype: Any, shape: list[int], layout: Any) -> Ring:
    count = int(shape[0])
    if layout == "barrier":
        return Ring(shape, [Barrier() for _ in range(count)])
    tiles = [Tile(torch.full([int(each) for each in shape[1:]], torch.nan, dtype=dtype)) for _ in range(count)]
    _program().tiles += tiles
    return Ring(shape, tiles)


def _wait(barrier: Barrier, phase: Any) -> None:
    parity = int(phase)
    _program().machine.pause(lambda: barrier.is_over(parity))


def _arrive(barrier: Barrier, count: int) -> None:
    assert count == 1
    barrier.arrive()
    _program().machine.pause()


def _load_tile(descriptor: Descriptor, coordinates: list[Any], barrier: Barrier, tile: Tile) -> None:
    there, here = descriptor.part(coordinates, tile.data)
    tile.data.fill_(torch.nan)  # from here on, nobody may rely on what was there

    def land() -> None:
        tile.data.zero_()
        here.copy_(there)
        barrier.landed(descriptor.block_type.nbytes)

    _program().machine.landing.append(land)
    _program().machine.pause()


def _store_tile(descriptor: Descriptor, coordinates: list[Any], tile: Tile, add: bool = False) -> None:
    if tile.writers:
        raise Fault("TMA stores what no fence has shown to it")
    _HERE.stores.append((*descriptor.part(coordinates, tile.data), tile, tile.data.clone(), add))


def _store_wait(outstanding: int) -> None:
    _program().machine.pause()
    while len(_HERE.stores) > outstanding:
        there, here, tile, seen, add = _HERE.stores.pop(0)
        if not same_bits(tile.data, seen):
            raise Fault("shared memory changed before its copy to the GPU's memory was waited for")
        there.copy_(there + here if add else here)


def _fence() -> None:
    me = threading.current_thread().name
    for tile in _program().tiles:
        tile.writers.discard(me)


def _mma(a: Any, b: Tile, acc: Any, use_acc: bool = True, is_async: bool = False) -> Matmul:
    assert is_async
    _HERE.matmuls.append(Matmul(a, b, acc, use_acc))
    _program().machine.pause()
    matmul: Matmul = _HERE.matmuls[-1]
    return matmul


def _mma_wait(outstanding: int, deps: tuple[Any, ...]) -> Any:
    _program().machine.pause()
    while len(_HERE.matmuls) > outstanding:
        _HERE.matmuls.pop(0).finish()
    results = tuple(each.result for each in deps)
    if any(result is None for result in results):
        raise Fault("a matmul's result is used while it is under way")
    return results[0] if len(results) == 1 else results


def _layout(*args: Any, **kwargs: Any) -> None:
    return None


def _scalar_or_tensor(function: Any) -> Any:
    return lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))


def _full(shape: list[Any], value: float, dtype: torch.dtype, layout: Any = None) -> torch.Tensor:
    return torch.full([int(each) for each in shape], value, dtype=dtype)


def _fma(a: Any, b: Any, c: Any) -> torch.Tensor:
    """Rounded once: the product of two fp32 is exact in fp64."""
    a, b, c = (torch.as_tensor(each).double() for each in (a, b, c))
    return (a * b + c).float()


gl = SimpleNamespace(
    program_id=lambda axis: torch.tensor(_program().index, dtype=torch.int32),
    num_programs=lambda axis: torch.tensor(_program().count, dtype=torch.int32),
    cdiv=lambda a, b: (a + b - 1) // b,
    minimum=_scalar_or_tensor(torch.minimum),
    maximum=_scalar_or_tensor(torch.maximum),
    where=lambda condition, a, b: torch.where(condition, torch.as_tensor(a), torch.as_tensor(b)),
    abs=torch.abs,
    exp2=torch.exp2,
    fma=_fma,
    ceil=torch.ceil,
    log2=lambda x: torch.log2(torch.as_tensor(x, dtype=torch.float32)),
    max=lambda x, axis: x.amax(axis),
    sum=lambda x, axis: x.sum(axis),
    arange=lambda start, end, layout=None: torch.arange(int(start), int(end), dtype=torch.int32),
    zeros=lambda shape, dtype, layout=None: _full(shape, 0.0, dtype),
    full=_full,
    static_range=range,
    convert_layout=lambda x, layout: x,
    barrier=lambda: _program().machine.pause(),
    load=lambda pointer, mask=True, other=0.0: pointer.read(mask, other),
    store=lambda pointer, value, mask: pointer.write(value, mask),
    allocate_shared_memory=_allocate,
    warp_specialize=_warp_specialize,
    math=SimpleNamespace(exp2=torch.exp2, log2=torch.log2),
    constexpr=tl.constexpr,
    float32=torch.float32,
    float16=torch.float16,
    bfloat16=torch.bfloat16,
    float8e4nv=torch.float8_e4m3fn,
    int64=torch.int64,
    int32=torch.int32,
    NVMMADistributedLayout=_layout,
    NVMMASharedLayout=SimpleNamespace(get_default_for=lambda shape, dtype: None),
    SliceLayout=_layout,
    DotOperandLayout=_layout,
    BlockedLayout=_layout,
    SwizzledSharedLayout=_layout,
)
_HOPPER = {
    "fence_async_shared": _fence,
    "mbarrier": SimpleNamespace(
        MBarrierLayout=lambda: "barrier",
        init=lambda barrier, count: barrier.init(int(count)),
        expect=lambda barrier, nbytes: barrier.arrive(nbytes),
        wait=_wait,
        arrive=_arrive,
    ),
    "tma": SimpleNamespace(
        async_load=_load_tile,
        async_store=_store_tile,
        async_atomic_add=lambda descriptor, coordinates, tile: _store_tile(descriptor, coordinates, tile, add=True),
        store_wait=_store_wait,
    ),
    "warpgroup_mma": _mma,
    "warpgroup_mma_wait": _mma_wait,
}


@contextlib.contextmanager
def interpreted_gluon() -> Iterator[None]:
    """What is imported inside gets these names for Gluon's."""
    language = (".language", ".language._core", ".language.nvidia", ".language.nvidia.hopper")
    modules = {name: ModuleType(f"{_PACKAGE}{name}") for name in ("", *language, ".nvidia", ".nvidia.hopper")}
    modules[""].__dict__.update(jit=jit, language=gl)
    modules[".language._core"].__dict__.update(builtin=lambda function: function, ir=None)
    modules[".language.nvidia.hopper"].__dict__.update(_HOPPER)
    modules[".nvidia.hopper"].__dict__.update(TensorDescriptor=Descriptor)
    ours = {f"{_PACKAGE}{name}": module for name, module in modules.items()}
    theirs = {name: module for name, module in sys.modules.items() if name.startswith(_PACKAGE)}
    package = triton.experimental.gluon
    try:
        for name in theirs:
            del sys.modules[name]
        sys.modules.update(ours)
        triton.experimental.gluon = modules[""]
        yield
    finally:
        for name in ours:
            del sys.modules[name]
        sys.modules.update(theirs)
        triton.experimental.gluon = package
