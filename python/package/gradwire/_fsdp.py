"""Compressed gradients for FSDP2, ``torch.distributed.fsdp.fully_shard``."""

import torch
import torch.distributed as dist

from . import Compressor, Device, Payload, SettingError, StateError
from . import recipe as _recipe
from ._checks import expect_key, expect_scaler, scale_of, warn_of_drops
from ._group import Group, of_key
from ._gradwire import has_feedback


class ReduceScatter:
    """What FSDP2 calls for a reduce-scatter, with payloads in the place of float32.

    Each rank encodes its gradient in as many pieces as there are ranks, and rank r decodes and adds the r-th pieces of
    all, in the order of ranks. ``recipe`` is a quantizer (not eden or drive) or a selection, with error feedback or without: its residual is
    of this rank, and is not re-sharded. One module has one of these. ``scaler`` and ``key`` are those of
    :class:`gradwire.torch.State`.
    """

    def __init__(self, recipe, *, seed=0, number=0, scaler=None, key=None):
        self.recipe = _recipe(recipe)
        warn_of_drops(recipe)
        self.scaler = expect_scaler(scaler)
        self.key = expect_key(key)
        self.seed = seed
        self.number = number
        """The module's number, so that modules draw differently."""
        self.steps = 0
        self.sent_bytes = 0
        self._feedback = has_feedback(self.recipe)
        self._residual = None
        self._before = None
        self._undo = False
        self._device = Device.cpu()
        self._groups = {}
        self.replicas = None
        """The :class:`AllReduce` over the replicas of the shard, where :func:`compress_fsdp` has set one."""

    def allocate(self, size, *, dtype, device):
        """Memory for inputs and outputs."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        """``output_tensor`` becomes this rank's piece of the sum, or of the mean, of all ranks' inputs."""
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise SettingError(f"compressed gradients are summed or averaged, and {op} was asked for")
        if group not in self._groups:
            self._groups[group] = of_key(Group(group), self.key)
        ranks = self._groups[group].ranks
        # Payloads of bf16 and f16 are made of them as they are.
        given = input_tensor.detach().reshape(ranks, -1).cpu()
        scale = scale_of(self.scaler)
        if scale != 1.0:
            given = given.float() / scale
        residual = None
        if self._feedback:
            if self._residual is None:
                self._residual = torch.zeros(given.shape)
            if self._residual.shape != given.shape:
                raise StateError(
                    f"the residual is of {self._residual.numel()} elements on {self._residual.shape[0]} ranks, and the "
                    f"gradient has {given.numel()} on {ranks}: begin with a new ReduceScatter"
                )
            # The residual before the step is kept beside the one after it, so that the step can be taken back.
            residual = self._residual.clone() if self._before is None else self._before.copy_(self._residual)
            self._before, self._undo = None, False
        try:
            parts = [
                bytes(
                    self._device.encode(
                        self.recipe,
                        given[rank],
                        run=self.seed,
                        step=self.steps,
                        # Replicas of a shard draw differently too.
                        worker=dist.get_rank(),
                        tensor=self.number * ranks + rank,
                        residual=None if residual is None else residual[rank],
                    )
                )
                for rank in range(ranks)
            ]
        except Exception:
            # The others wait for this rank, and are told by payloads that are none.
            self._groups[group].all_to_all([b""] * ranks)
            raise
        received = self._groups[group].all_to_all(parts)
        weight = scale / ranks if op == dist.ReduceOp.AVG else scale
        mine = output_tensor.detach()
        inside = mine.dtype == torch.float32 and mine.device.type == "cpu"
        total = mine if inside else torch.empty(mine.shape)
        self._device.decode_sum([Payload(part) for part in received], total, weight)
        if not inside:
            mine.copy_(total)
        self._residual, self._before = residual, self._residual
        self._undo = True
        self.steps += 1
        self.sent_bytes += sum(len(part) for rank, part in enumerate(parts) if rank != self._groups[group].rank)

    def undo_step(self):
        """Takes back the last step, and that of the replicas: what was sent of the residual comes back.

        For a step that the optimizer does not apply, on every rank and for every module that made it.
        """
        if not self._undo:
            raise StateError("there is no step to take back: undo_step comes after a step that succeeded, once")
        if self.replicas is not None:
            self.replicas.undo_step()
        self._residual, self._before = self._before, self._residual
        self._undo = False
        self.steps -= 1

    def state_dict(self):
        """What a checkpoint of this rank has to hold."""
        return {
            "recipe": self.recipe,
            "seed": self.seed,
            "number": self.number,
            "rank": dist.get_rank(),
            "steps": self.steps,
            "residual": None if self._residual is None else self._residual.clone(),
        }

    def load_state_dict(self, state):
        """Takes up what :meth:`state_dict` gave on this rank, of as many ranks."""
        mine = {"recipe": self.recipe, "seed": self.seed, "number": self.number, "rank": dist.get_rank()}
        for what, expected in mine.items():
            if state.get(what) != expected:
                raise StateError(f"the {what} of the state is {state.get(what)!r}, and {expected!r} is needed")
        if "steps" not in state or "residual" not in state:
            raise StateError("the state has no steps or no residual: hand over what ReduceScatter.state_dict gave")
        residual = state["residual"]
        self.steps = state["steps"]
        # A copy: the state that was handed over stays what it is.
        self._residual = None if residual is None else residual.to("cpu", torch.float32, copy=True)
        self._before, self._undo = None, False


class AllReduce:
    """What FSDP2 calls behind a reduce-scatter, where the shards have replicas: their mean, compressed.

    Any recipe that :class:`gradwire.torch.State` takes; a shard is one tensor without sides, so that PowerSGD sends it as
    it is.
    """

    def __init__(self, recipe, process_group, *, seed=0, number=0, scaler=None, key=None):
        self.recipe = _recipe(recipe)
        warn_of_drops(recipe)
        self.scaler = expect_scaler(scaler)
        self._run = (seed << 20) + number
        self._group = of_key(Group(process_group), expect_key(key))
        self._device = Device.cpu()
        self._compressor = None

    def __call__(self, reduce_output):
        """``reduce_output`` becomes its mean over the replicas."""
        if self._compressor is None:
            self._compressor = Compressor(self.recipe, [[reduce_output.numel()]], self._run & (2**64 - 1), small=0)
        mine = reduce_output.detach()
        inside = mine.dtype == torch.float32 and mine.device.type == "cpu"
        values = mine if inside else mine.to("cpu", torch.float32)
        scale = scale_of(self.scaler)
        if scale != 1.0:
            values.div_(scale)
        try:
            self._compressor.exchange(self._device, self._group, values, in_place=True)
        finally:
            if scale != 1.0:
                values.mul_(scale)
        if not inside:
            mine.copy_(values)

    def undo_step(self):
        """Takes back the last step."""
        if self._compressor is None:
            raise StateError("there is no step to take back: no mean was made so far")
        self._compressor.undo()


def compress_fsdp(model, recipe, *, seed=0, replicas=None, replica_recipe=None, scaler=None, key=None):
    """Compresses the reduce-scatter of every module that ``fully_shard`` holds; returns what was set, module by module.

    With ``replicas``, a process group of the ranks that hold the same shard, the mean over them is compressed as well, by
    ``replica_recipe``, or by ``recipe`` where there is none. ``scaler`` and ``key`` are those of
    :class:`gradwire.torch.State`.
    """
    sharded = [module for module in model.modules() if hasattr(module, "set_custom_reduce_scatter")]
    if not sharded:
        raise SettingError(
            "no module of the model has set_custom_reduce_scatter: shard it by torch.distributed.fsdp.fully_shard, and use "
            "a torch that offers it"
        )
    held = []
    for number, module in enumerate(sharded):
        scatter = ReduceScatter(recipe, seed=seed, number=number, scaler=scaler, key=key)
        module.set_custom_reduce_scatter(scatter)
        if replicas is not None:
            scatter.replicas = AllReduce(
                replica_recipe or recipe, replicas, seed=seed, number=number, scaler=scaler, key=key
            )
            module.set_all_reduce_hook(scatter.replicas)
        held.append(scatter)
    return held
