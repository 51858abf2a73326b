"""Compressed gradients for PyTorch: a communication hook of DistributedDataParallel.

    state = gradwire.torch.State("qsgd:bits=4,bucket=64+ef")
    ddp.register_comm_hook(state, gradwire.torch.hook)

Every rank makes its state at the same point of the program, since it makes a process group of its own.
"""

import contextlib
import hashlib
import inspect
import json
import logging
import math
import queue
import threading
import weakref

import torch
import torch.distributed as dist

from . import Compressor, Device, Error, GroupError, SettingError, StateError
from . import recipe as _recipe
from ._checks import expect_key, expect_real, expect_scaler, scale_of, warn_of_drops, warn_of_float64
from ._fsdp import AllReduce, ReduceScatter, compress_fsdp
from ._group import Group, global_rank, of_key

__all__ = ["AllReduce", "Gradients", "Group", "PowerSGDState", "ReduceScatter", "State", "compress_fsdp", "hook"]

_log = logging.getLogger(__name__)

# What belongs to this process, or to an object beside a state.
_NOT_COPIED = "process_group scaler key _failed _step _last _refused _device _streams _group _jobs _thread _close".split()


class State:
    """What the hook keeps: residuals and momenta by parameter, a thread that exchanges, and a process group.

    recipe
        What becomes of a gradient, as in ``"qsgd:bits=4,bucket=64+ef"``, ``"topk:0.01+ef"``, ``"powersgd:rank=4"`` or
        ``"grace:terngrad"``. :func:`gradwire.methods` lists the published methods.
    process_group
        The ranks whose gradients are averaged; all of them unless one is named. The state makes a group of the same
        ranks for its own messages, so every one of them has to make the state at the same point.
    seed
        The number of the training run. The same on every rank.
    warm_up
        Steps in which gradients go uncompressed. PyTorch makes its buckets anew behind the first step.
    rules
        Pairs of a pattern of parameter names and a recipe for them, as ``[("*embedding*", "topk:0.001+ef")]``. The first
        that fits counts.
    small
        Tensors of fewer elements go uncompressed. Unless it is said, those of fewer than 1024, and vectors of fewer than
        65536.
    model
        Where the names of the parameters come from. Without one they are ``p0``, ``p1`` and so on, in the order in which
        their gradients come.
    through_host
        Whether a gradient on a CUDA device is exchanged through the host's memory, for recipes that the device does not
        run: votes, gtopk and twophase. Otherwise it stays there, and payloads alone leave it.
    timeout
        A ``datetime.timedelta``: how long a rank may keep the others waiting; PyTorch's own default unless it is said.
    scaler
        The ``GradScaler`` that scales the loss, or a function that gives the current scale. Gradients are divided by the
        scale before the exchange, and means multiplied by it, so that residuals, momenta and estimates stay right when
        the scale changes. For scales that are powers of two, as a ``GradScaler``'s are, that is exact, but for values so
        small that their quotient is subnormal: below 2^-110 at a scale of 65536. Every rank needs the same scale.
    unused
        Whether steps may leave out parameters on all ranks, as DDP allows with ``find_unused_parameters=True``. DDP drops
        what the hook gives for them, so that nothing of their residuals may be sent: ranks tell each other which gradients
        are all zeros, in a short message per bucket. Unless it is said, it is as ``model`` was made, if that is a DDP.
    key
        A :class:`gradwire.Key`, the same on every rank: messages of the hook are authenticated (:class:`gradwire.Keyed`).
        What PyTorch sends itself is not: the steps of ``warm_up``, so set it to 0 or leave the key's promise to the steps
        after, and what DDP sends when it is made. A copy has no key.
    """

    def __init__(
        self,
        recipe,
        process_group=None,
        *,
        seed=0,
        warm_up=1,
        rules=(),
        small=None,
        model=None,
        through_host=False,
        timeout=None,
        scaler=None,
        unused=None,
        key=None,
    ):
        self.recipe = _recipe(recipe)
        self.scaler = expect_scaler(scaler)
        self.key = expect_key(key)
        self.timeout = timeout
        self.process_group = process_group
        self.seed = seed
        self.warm_up = warm_up
        rules = list(rules)
        self.rules = [(pattern, _recipe(text)) for pattern, text in rules]
        for text in [recipe, *(text for _, text in rules)]:
            warn_of_drops(text)
        self.small = small
        self.through_host = through_host
        self.unused = bool(getattr(model, "find_unused_parameters", False) if unused is None else unused)
        self.steps = 0
        self.sent_bytes = 0
        """Bytes that this rank has handed over to the group since the state was made."""
        self._names = {}
        self._given = {}
        if model is not None:
            # DDP and torch.compile put a prefix before the names.
            for name, parameter in model.named_parameters():
                while name.startswith(("module.", "_orig_mod.")):
                    name = name.partition(".")[2]
                self._given[parameter] = name
        self._buckets = {}
        self._holder = {}
        # Parameters that were left out in the same steps have the same number here; 0 where there is none.
        self._past = {}
        self._pasts = {}
        self._warned = False
        # The step after a load, whose buckets a new DDP makes anew.
        self._resumed = None
        self._keeps_coefficients = any("dct" in text for text in [self.recipe, *(text for _, text in self.rules)])
        # The parameters of the first step, where no model says them.
        self._known = set()
        self._begin()
        self._connect()

    def _begin(self):
        """What neither a copy nor a file holds."""
        self._failed = None
        self._step = None
        self._last = None
        self._refused = None
        self._device = Device.cpu()
        self._streams = {}
        self._group = None
        self._jobs = None
        self._thread = None
        self._close = lambda: None

    def _connect(self):
        """Makes the group and the thread, and compares the settings of all ranks."""
        process_group, ranks = self.process_group, None
        if process_group is not None:
            ranks = [global_rank(process_group, rank) for rank in range(dist.get_world_size(process_group))]
        backend = dist.get_backend(process_group)
        own = {"timeout": self.timeout} if self.timeout is not None else {}
        if ranks is not None and len(ranks) < dist.get_world_size():
            # Otherwise every process of the world would have to make the same group at the same time.
            if "use_local_synchronization" not in inspect.signature(dist.new_group).parameters:
                raise SettingError("a part of the world's ranks needs a torch whose new_group has use_local_synchronization")
            own["use_local_synchronization"] = True
        group = of_key(Group(dist.new_group(ranks, backend=backend, **own)), self.key)
        self._expect_agreement(group)
        self._group = group
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name="gradwire", daemon=True)
        self._thread.start()
        self._close = weakref.finalize(self, self._jobs.put, None)

    def _expect_agreement(self, group):
        """Refuses ranks with other settings, which would wait for messages that do not come."""
        settings = {what: getattr(self, what) for what in ["recipe", "rules", "small", "seed", "warm_up", "unused", "steps"]}
        settings["scaler"] = "none" if self.scaler is None else "one"
        mine = json.dumps(settings, default=repr)
        for rank, theirs in enumerate(group.all_gather(mine.encode())):
            try:
                settings = json.loads(theirs)
            except ValueError:
                raise SettingError(
                    f"rank {rank} sent no settings: give every rank the same release, and the same key or none"
                ) from None
            for what, found in settings.items():
                expected = json.loads(mine)[what]
                if found != expected:
                    raise SettingError(
                        f"{what} is {found!r} on rank {rank} and {expected!r} on rank {group.rank}: make the state with the "
                        "same on every rank"
                    )

    def __getstate__(self):
        """For copies and files, as of a model that DDP holds: all but group, thread and scaler."""
        _log.warning("a process group is not in a copy of a state, and a scaler is not either")
        self._wait()
        kept = {name: value for name, value in vars(self).items() if name not in _NOT_COPIED}
        kept["_buckets"] = [(key, compressor.state()) for key, compressor in self._buckets.items()]
        kept["_place"] = self._place if self._group is None else (self._group.rank, self._group.ranks)
        kept["_scaled"] = self._scaled if self._group is None else self.scaler is not None
        kept["_keyed"] = self._keyed if self._group is None else self.key is not None
        return kept

    def __setstate__(self, kept):
        """A state that makes its group in its first step, and so on every rank: of all ranks unless another is set."""
        _log.warning("a copy of a state is for all ranks: set its process_group and its scaler before its first step otherwise")
        vars(self).update(kept)
        self._begin()
        self.process_group = self.scaler = self.key = None
        rank, ranks = self._place
        self._buckets = {}
        for key, saved in kept["_buckets"]:
            self._buckets[key] = self._compressor(key)
            self._buckets[key].restore([saved] * ranks, rank, ranks)

    def _expect_connected(self):
        """A copy makes its group when it is used."""
        if self._group is not None or self._failed is not None:
            return
        if self._scaled and self.scaler is None:
            raise StateError("the state that was copied had a scaler, which a copy has not: set state.scaler")
        if self._keyed and self.key is None:
            raise StateError("the state that was copied had a key, which a copy has not: set state.key")
        self._connect()
        if self._buckets and self._place != (self._group.rank, self._group.ranks):
            rank, ranks = self._place
            raise StateError(
                f"the state was copied on rank {rank} of {ranks}, and this is rank {self._group.rank} of "
                f"{self._group.ranks}: residuals belong to a rank; use state_dict and load_state_dict"
            )

    def close(self):
        """Ends the thread. The state cannot be used any further."""
        self._failed = self._failed or GroupError("the state was closed: make a new one on all ranks")
        self._close()
        if self._thread is not None:
            self._thread.join()

    def undo_step(self):
        """Takes back the last step: what it has sent of the residuals comes back, and :attr:`steps` counts one less.

        For a step whose mean the optimizer does not apply, as after a clip that skips or a ``GradScaler``'s overflow::

            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() < before:
                state.undo_step()

        Every rank takes back the same steps. Call it after backward, once per step. Gradients keep the mean, and
        :attr:`sent_bytes` what was sent.
        """
        self._settle()
        if self._step is not None:
            raise StateError("a step is under way, some buckets of which did not come yet: call undo_step after backward")
        if self._last is None:
            raise StateError(
                "there is no step to take back: undo_step comes after a step, once, and before anything is loaded"
            )
        for index, compressor in enumerate(self._last.made):
            try:
                compressor.undo()
            except Error as error:
                if index > 0:
                    self._failed = StateError(
                        "a step was taken back in part: load a checkpoint into a new state on all ranks"
                    )
                raise StateError(f"the last step cannot be taken back: {error}") from error
        self._last = None
        self.steps -= 1

    def _wait(self):
        """Waits for the buckets that are under way."""
        if self._thread is not None and self._thread.is_alive():
            done = threading.Event()
            self._jobs.put(done)
            done.wait()

    def _settle(self):
        """Waits for the buckets that are under way, and refuses to go on where one has failed."""
        self._wait()
        if self._failed is not None:
            raise self._failed

    def state_dict(self):
        """What a checkpoint of this rank has to hold. Every rank saves its own. The state has to be made with ``model``."""
        self._expect_names()
        self._settle()
        buckets = [
            {"names": list(names), "shapes": [list(shape) for shape in shapes], "state": compressor.state()}
            for (names, shapes), compressor in self._buckets.items()
        ]
        self._expect_connected()
        return {
            "version": 1,
            "recipe": self.recipe,
            "rules": list(self.rules),
            "small": self.small,
            "seed": self.seed,
            "steps": self.steps,
            "rank": self._group.rank,
            "ranks": self._group.ranks,
            "buckets": buckets,
        }

    def load_state_dict(self, states):
        """Takes up what :meth:`state_dict` gave: this rank's own, or a list of those of all ranks that there were.

        With another number of ranks than before the list is needed; the sum of all residuals stays what it was. With as
        many, training goes on with the bits of an uninterrupted run where the recipe draws nothing at random, as top-k
        and PowerSGD do not. Draws belong to buckets, and those of a new DDP are others until it has made them anew.
        What ``dct`` keeps belongs to buckets too: those of a new DDP's first step that are others go uncompressed.
        """
        self._expect_names()
        self._expect_connected()
        self._settle()
        states = _all(states, self._group)
        for index, state in enumerate(states):
            for what in ["version", "recipe", "rules", "small", "seed", "steps", "buckets"]:
                if what not in state:
                    raise StateError(f"state {index} has no {what}: hand over what State.state_dict gave")
            mine = {"version": 1, "recipe": self.recipe, "rules": self.rules, "small": self.small, "seed": self.seed}
            mine["steps"] = states[0]["steps"]
            for what, expected in mine.items():
                found = [tuple(rule) for rule in state[what]] if what == "rules" else state[what]
                if found != expected:
                    raise StateError(f"the {what} of state {index} is {found!r}, and {expected!r} is needed")
            names = [bucket["names"] for bucket in state["buckets"]]
            if names != [bucket["names"] for bucket in states[0]["buckets"]]:
                raise StateError(f"state {index} has other buckets than state 0: all have to be of one step")
        buckets = {}
        for index, bucket in enumerate(states[0]["buckets"]):
            key = (tuple(bucket["names"]), tuple(tuple(shape) for shape in bucket["shapes"]))
            compressor = self._compressor(key)
            all = [state["buckets"][index]["state"] for state in states]
            compressor.restore(all, self._group.rank, self._group.ranks)
            buckets[key] = compressor
        self.steps = self._resumed = states[0]["steps"]
        self._step = self._last = None
        self._buckets = buckets
        self._holder = {name: key for key in buckets for name in key[0]}
        self._past, self._pasts = {}, {}

    def _expect_names(self):
        """Refuses names by the order in which parameters came, which another run's need not be."""
        if self._names or not self._given:
            raise StateError("a checkpoint needs the names of the parameters: make the state with State(..., model=ddp)")

    def _stream(self, device):
        """The stream of the exchanges on a device."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _compressor(self, key):
        names, shapes = key
        # The buckets' draws have to differ, and be the same on every rank.
        digest = hashlib.blake2b(f"{self.seed} {names[0]}".encode(), digest_size=8).digest()
        return Compressor(
            self.recipe,
            [list(shape) for shape in shapes],
            int.from_bytes(digest, "little"),
            names=list(names),
            rules=self.rules,
            small=self.small,
        )

    def _name(self, parameter):
        given = self._given.get(parameter)
        if given is not None:
            return given
        return self._names.setdefault(parameter, f"p{len(self._names)}")

    def _units(self, names, shapes):
        """The exchanges of a bucket of these parameters: for each the places in the bucket, a key and a compressor.

        One exchange has them all, unless steps have left out some: these have made other steps than the rest.
        """
        alike = {}
        for place, name in enumerate(names):
            holder = self._holder.get(name)
            steps = None if holder is None else self._buckets[holder].steps
            alike.setdefault((self._past_of(name), steps), []).append(place)
        # What begins anew goes along with others.
        for past, steps in [unit for unit in alike if unit[1] is None]:
            other = next((unit for unit in alike if unit[0] == past and unit[1] is not None), None)
            if other is not None:
                alike[other] = sorted(alike[other] + alike.pop((past, steps)))
        units = []
        for places in alike.values():
            key = (tuple(names[place] for place in places), tuple(shapes[place] for place in places))
            units.append((places, key, self._of(key)))
        return units

    def _past_of(self, name):
        """Parameters for which this is the same were left out in the same steps.

        Coefficients cannot be taken apart: where parameters may be left out, each is by itself from the start.
        """
        return name if self.unused and self._keeps_coefficients else self._past.get(name, 0)

    def _leave_out(self, names, used):
        """Takes apart what was exchanged at once so far and is not any more."""
        alike = {}
        for name, flag in zip(names, used):
            alike.setdefault((self._past_of(name), self._holder.get(name)), {})[name] = flag
        for (past, _), flags in alike.items():
            if len(set(flags.values())) > 1:
                for name, flag in flags.items():
                    self._past[name] = self._pasts.setdefault((past, flag), len(self._pasts) + 1)

    def _of(self, key):
        """The compressor of these parameters, which takes over what others have kept of them."""
        compressor = self._buckets.get(key)
        if compressor is None or any(self._holder.get(name) != key for name in key[0]):
            compressor = self._compressor(key)
            holders = {self._holder[name]: None for name in key[0] if name in self._holder}
            compressor.take_over([self._buckets[holder] for holder in holders])
            self._buckets[key] = compressor
            for name in key[0]:
                self._holder[name] = key
            held = set(self._holder.values())
            self._buckets = {key: kept for key, kept in self._buckets.items() if key in held}
        return compressor

    def _queue(self, bucket):
        """A bucket of the hook; its future. Within a backward, a refusal is raised at the end of it."""
        refused, step = self._refused, self._step
        try:
            if refused is None:
                return self._take(bucket)
        except Exception as error:
            # Why an earlier bucket of the step failed says more than that one has.
            refused = error if step is None or step.error is None else step.error
        step = _Step()
        step.error = refused
        if not _in_backward():
            raise refused
        _raise_after_backward(step)
        # The rest of the step's buckets are refused too.
        self._refused = None if bucket.is_last() else refused
        future = _future(bucket.buffer())
        future.set_result(bucket.buffer())
        return future

    def _take(self, bucket):
        self._expect_connected()
        if self._failed is not None:
            raise self._failed
        gradient = bucket.buffer()
        if gradient.layout != torch.strided:
            raise SettingError("sparse gradients are not compressed: make the layer with sparse=False")
        self._expect_known(bucket.parameters())
        try:
            if self._step is None:
                self._step, self._last = _Step(), None
                self._step.raised_by_backward = _in_backward()
                if self.steps >= self.warm_up:
                    self._step.scale = scale_of(self.scaler)
            future = self._start(bucket, gradient)
        except BaseException:
            # What was refused is no step.
            self._step = None
            raise
        if bucket.is_last():
            # In the part of the backward whose end DDP waits for: others may have ended before.
            if self._step.raised_by_backward:
                _raise_after_backward(self._step)
            self.steps += 1
            self._step, self._last = None, self._step
        return future

    def _are_other_blocks(self, names, shapes):
        """Whether a bucket of a new DDP's first step is none of those that were loaded: the next step's will be."""
        if not self._keeps_coefficients or self.unused:
            return False
        return any(self._holder.get(name) not in (None, (names, shapes)) for name in names)

    def _expect_known(self, parameters):
        """Refuses the parameters of a second model, whose steps would count for the first one's."""
        for parameter in parameters:
            if self._given and parameter not in self._given:
                raise SettingError(
                    f"a parameter of shape {list(parameter.shape)} is not in the model that the state was made with: make one "
                    "state for each model, with model=ddp"
                )
            if not self._given and parameter not in self._known:
                if self.steps > 0:
                    raise SettingError(
                        f"a parameter of shape {list(parameter.shape)} was not in the first step: make one state for each "
                        "model, and a new one for other parameters, or state with model=ddp which parameters there are"
                    )
                self._known.add(parameter)

    def _expect_floats(self, parameters):
        """Refuses complex parameters, and says once that float64 becomes float32."""
        for parameter in parameters:
            # A name is given where it is needed: without a model the order of the asking makes it.
            if parameter.is_complex():
                expect_real(self._name(parameter), parameter)
        if not self._warned and parameters and parameters[0].dtype == torch.float64:
            self._warned = True
            warn_of_float64(self._name(parameters[0]))

    def _start(self, bucket, gradient):
        if self.recipe != "none" or self.rules:
            self._expect_floats(bucket.parameters())
        if self.steps < self.warm_up or self.recipe == "none" and not self.rules:
            self.sent_bytes += gradient.numel() * gradient.element_size()
            return _mean(gradient, self.process_group)
        names = tuple(self._name(parameter) for parameter in bucket.parameters())
        shapes = tuple(_shape(parameter) for parameter in bucket.parameters())
        elements = sum(parameter.numel() for parameter in bucket.parameters())
        if gradient.numel() != elements:
            raise SettingError(
                f"the bucket has {gradient.numel()} elements, and its parameters {elements}: parameters that share memory "
                "are not compressed; leave the hook out for them"
            )
        if self.steps == self._resumed and self._are_other_blocks(names, shapes):
            self.sent_bytes += gradient.numel() * gradient.element_size()
            return _mean(gradient, self.process_group)
        # Which parameters are used is known where all ranks have told, and the thread alone changes what is kept then.
        units = None if self.unused else self._units(names, shapes)
        future = _future(gradient)
        ready = None
        if gradient.is_cuda:
            ready = torch.cuda.Event()
            ready.record()
        self._jobs.put(_Job(self, self._step, names, shapes, units, gradient, ready, future))
        return future


def _future(gradient):
    """A future for a tensor."""
    return torch.futures.Future(devices=[gradient.device]) if gradient.is_cuda else torch.futures.Future()


_engine = torch.autograd.Variable._execution_engine


def _in_backward():
    """Whether this is called within a backward."""
    try:
        _engine.queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True


def _raise_after_backward(step):
    """Has backward raise the error of a step as it is, if there is one by then.

    DDP takes a future's error for a tensor, and says that it cannot cast it. So the future succeeds, and the error is
    raised after DDP's own end of backward: a callback that a callback adds comes last.
    """

    def raise_it():
        if step.error is not None:
            raise step.error

    _engine.queue_callback(lambda: _engine.queue_callback(raise_it))


@contextlib.contextmanager
def _unscaled(values, scale):
    """Values without the loss scale while a block runs, and with it afterwards, even if the block fails."""
    if scale == 1.0:
        yield
        return
    values.div_(scale)
    try:
        yield
    finally:
        values.mul_(scale)


class _Step:
    """A step of all buckets."""

    def __init__(self):
        self.made = []
        """The compressors that have exchanged, in their order."""
        self.scale = 1.0
        """What the loss was multiplied by."""
        self.error = None
        """Why the step failed."""
        self.raised_by_backward = False


class _Job:
    """A bucket that is to be exchanged."""

    def __init__(self, state, step, names, shapes, units, gradient, ready, future):
        self.state = state
        self.step = step
        self.names = names
        self.shapes = shapes
        self.units = units
        self.gradient = gradient
        self.ready = ready
        self.future = future

    def run(self):
        """Exchanges the bucket, and completes its future."""
        state, gradient = self.state, self.gradient
        if state._failed is not None:
            raise state._failed
        if self.ready is not None and gradient.dtype == torch.float32 and not state.through_host:
            stream = state._stream(gradient.device)
            with torch.cuda.stream(stream):
                stream.wait_event(self.ready)
                gradient.record_stream(stream)
                self.exchange(gradient, stream)
                # Here, so that who waits for the future waits for this stream.
                self.future.set_result(gradient)
            return
        if self.ready is None and gradient.dtype == torch.float32:
            self.exchange(gradient)
        else:
            if self.ready is not None:
                self.ready.synchronize()
            apart = gradient.to("cpu", torch.float32)
            self.exchange(apart)
            gradient.copy_(apart)
        self.future.set_result(gradient)

    def exchange(self, values, stream=0):
        """Float32 values become their mean over all ranks."""
        sizes = [math.prod(shape) for shape in self.shapes]
        units, used = self.units, [True] * len(sizes)
        if units is None:
            units, used = self.in_use(values.split(sizes))
        with _unscaled(values, self.step.scale):
            for places, key, compressor in units:
                # All of a unit are used, or none.
                if not used[places[0]]:
                    continue
                if len(places) == len(sizes):
                    self.exchange_unit(key, compressor, values, stream)
                    continue
                pieces = values.split(sizes)
                apart = torch.cat([pieces[place] for place in places])
                self.exchange_unit(key, compressor, apart, stream)
                for place, mean in zip(places, apart.split([sizes[place] for place in places])):
                    pieces[place].copy_(mean)

    def exchange_unit(self, key, compressor, values, stream):
        state = self.state
        state._group.begin(key)
        compressor.exchange(state._device, state._group, values, stream=stream, in_place=True)
        self.step.made.append(compressor)
        state.sent_bytes += compressor.last_bytes

    def in_use(self, pieces):
        """The units of the bucket, and which parameters any rank uses: their gradients are not zeros everywhere."""
        state = self.state
        if pieces[0].is_cuda:
            mine = torch.stack([piece.any() for piece in pieces]).tolist()
        else:
            # The first elements say it nearly always.
            mine = [bool(piece[:256].any()) or bool(piece.any()) for piece in pieces]
        state._group.begin(("used", self.names))
        all = state._group.all_gather(bytes(mine))
        used = [any(flags) for flags in zip(*all)]
        state._leave_out(self.names, used)
        return state._units(self.names, self.shapes), used


def _shape(parameter):
    """The sides of a parameter in the order of its memory, in which it lies in DDP's bucket if it is dense.

    A matrix that is transposed in memory is the transposed matrix, of the same rank; a convolution whose channels come
    last has the same rows. DDP writes what is not dense row after row, as its shape says.
    """
    shape, strides = tuple(parameter.shape), parameter.stride()
    if parameter.is_contiguous():
        return shape
    places = [place for place, side in enumerate(shape) if side != 1]
    order = sorted(places, key=lambda place: -strides[place])
    expected = 1
    for place in reversed(order):
        if strides[place] != expected:
            return shape
        expected *= shape[place]
    # Sides of 1 lie anywhere.
    sides = dict(zip(places, order))
    return tuple(shape[sides.get(place, place)] for place in range(len(shape)))


def _work(jobs):
    """Exchanges buckets, in the order in which they came."""
    while True:
        job = jobs.get()
        if job is None:
            return
        if isinstance(job, threading.Event):
            job.set()
            continue
        try:
            job.run()
        except BaseException as error:  # The training's own thread has to see it, whatever it is.
            if job.state._failed is None:
                job.state._failed = GroupError(f"an exchange failed before: {error}. Make a new group and a new state")
                job.state._failed.__cause__ = error
            # A future takes no other kind, as which a panic comes.
            raised = error if isinstance(error, Exception) else job.state._failed
            if job.step.raised_by_backward:
                job.step.error = job.step.error or raised
                job.future.set_result(job.gradient)
            else:
                job.future.set_exception(raised)
        # The last reference to a state may be a job's.
        del job


def _mean(gradient, process_group):
    """The mean without compression, as DDP makes it."""
    gradient.div_(dist.get_world_size(process_group))
    work = dist.all_reduce(gradient, group=process_group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def hook(state, bucket):
    """The hook: ``ddp.register_comm_hook(state, gradwire.torch.hook)``. The gradient becomes the mean over all ranks."""
    return state._queue(bucket)


class PowerSGDState(State):
    """PowerSGD with the names that torch's ``powerSGD_hook.PowerSGDState`` has for its settings.

    Weights stay the same to the bit on all ranks, and residuals stay with their parameters when buckets change.
    """

    def __init__(
        self,
        process_group=None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=1000,
        min_compression_rate=2,
        use_error_feedback=True,
        warm_start=True,
        random_seed=0,
        **settings,
    ):
        words = [f"rank={matrix_approximation_rank}"]
        if min_compression_rate != 2:
            words.append(f"mincompression={min_compression_rate}")
        if not warm_start:
            raise SettingError("warm_start=False is not offered: without it PowerSGD needs more iterations for the same error")
        text = "powersgd:" + ",".join(words) + ("" if use_error_feedback else "+noef")
        # Which tensors are worth it is the rate's to say.
        settings.setdefault("small", 0)
        super().__init__(text, process_group, seed=random_seed, warm_up=start_powerSGD_iter, **settings)


class Gradients:
    """The gradients of a model that no wrapper holds, averaged over all ranks: for loops of one's own, and for DeepSpeed.

        gradients = gradwire.torch.Gradients(model, "topk:0.01+ef")
        loss.backward()
        gradients.average()
        optimizer.step()

    All gradients are exchanged at once, in few messages, and nothing runs beside backward. A parameter without a gradient
    counts as one of zeros, and gets the mean of the other ranks'. Every rank makes this of the same parameters. With
    ``scaler``, gradients are of a scaled loss, as of :class:`State`: average them before ``scaler.unscale_``. With ``key``,
    all messages are authenticated, as of :class:`State`.
    """

    def __init__(self, model, recipe, process_group=None, *, seed=0, rules=(), small=None, scaler=None, key=None):
        rules = list(rules)
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        for name, parameter in named:
            expect_real(name, parameter)
        doubles = [name for name, parameter in named if parameter.dtype == torch.float64]
        if doubles:
            warn_of_float64(doubles[0])
        for text in [recipe, *(text for _, text in rules)]:
            warn_of_drops(text)
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.scaler = expect_scaler(scaler)
        self._group = of_key(Group(process_group), expect_key(key))
        self._device = Device.cpu()
        shapes = [list(parameter.shape) for parameter in self.parameters]
        self._compressor = Compressor(recipe, shapes, seed, names=self.names, rules=rules, small=small)
        self._room = torch.zeros(self._compressor.elements)

    @property
    def sent_bytes(self):
        """Bytes that this rank handed over to the group in the last step."""
        return self._compressor.last_bytes

    def average(self):
        """Every gradient becomes its mean over all ranks. Where this fails, they are as they were."""
        pieces = self._room.split([parameter.numel() for parameter in self.parameters])
        for piece, parameter in zip(pieces, self.parameters):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad.detach().reshape(-1))
        self._group.begin("all")
        with _unscaled(self._room, scale_of(self.scaler)):
            self._compressor.exchange(self._device, self._group, self._room, in_place=True)
        for piece, parameter in zip(pieces, self.parameters):
            mean = piece.reshape(parameter.shape)
            if parameter.grad is None:
                parameter.grad = mean.to(parameter.device, parameter.dtype, copy=True)
            else:
                parameter.grad.copy_(mean)

    def undo_step(self):
        """Takes back the last :meth:`average`: what it has sent of the residuals comes back. Gradients keep the mean.

        For a step that the optimizer does not apply, once per step and on every rank, as :meth:`State.undo_step`.
        """
        try:
            self._compressor.undo()
        except Error as error:
            raise StateError(f"the last step cannot be taken back: {error}") from error

    def state_dict(self):
        """What a checkpoint of this rank has to hold. Every rank saves its own."""
        return {"names": self.names, "rank": self._group.rank, "ranks": self._group.ranks, "state": self._compressor.state()}

    def load_state_dict(self, states):
        """Takes up what :meth:`state_dict` gave: this rank's own, or a list of those of all ranks that there were."""
        states = _all(states, self._group)
        for index, state in enumerate(states):
            if "state" not in state or state.get("names") != self.names:
                raise StateError(f"state {index} is of other parameters: hand over what Gradients.state_dict gave for these")
        self._compressor.restore([state["state"] for state in states], self._group.rank, self._group.ranks)


def _all(states, group):
    """The states of all ranks that there were, in their order, or this rank's own as often as there are ranks."""
    if isinstance(states, dict):
        return _own(states, group)
    states = list(states)
    found = [state.get("rank") for state in states]
    needed = states[0].get("ranks") if states else None
    if not isinstance(needed, int) or found != list(range(needed)) or any(state.get("ranks") != needed for state in states):
        raise StateError(
            f"states of the ranks {found} of {needed} were handed over, and those of all ranks that there were are needed, "
            "from rank 0 on"
        )
    return states


def _own(state, group):
    """This rank's own state in the place of those of all ranks, of which only its own counts."""
    if (state.get("rank"), state.get("ranks")) != (group.rank, group.ranks):
        raise StateError(
            f"the state is of rank {state.get('rank')} of {state.get('ranks')}, and this is rank {group.rank} of "
            f"{group.ranks}: hand over a list with the states of all ranks that there were"
        )
    return [state] * group.ranks
