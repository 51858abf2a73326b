from collections.abc import Sequence
from typing import Any, Protocol

class Group(Protocol):
    """Ranks that work together. Every rank calls the same operations in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def all_gather(self, mine: bytes, /) -> Sequence[bytes]:
        """The bytes of every rank, in the order of ranks. Lengths may differ, and may be 0."""
    def all_to_all(self, parts: Sequence[bytes], /) -> Sequence[bytes]:
        """Rank r receives ``parts[r]`` of every rank."""
    def all_reduce_sum(self, values: bytearray, /) -> None:
        """Float32 numbers become their sum over all ranks, the same bits on every rank."""
    def exchange(self, peer: int, mine: bytes, /) -> bytes:
        """Gives bytes to one rank, which calls this too, and returns what it gave."""
    def broadcast(self, root: int, mine: bytes, /) -> bytes:
        """The bytes of rank ``root``, on every rank."""

class Payload:
    """A compressed gradient, complete and checked. Pickles as its bytes."""

    def __init__(self, data: Any) -> None:
        """Checks received bytes, and keeps a copy. Raises PayloadError."""
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
    @property
    def codec(self) -> str:
        """The codec's name."""
    @property
    def entries(self) -> int:
        """Entries that are sent: all elements, or those that were selected."""

class Device:
    """What encodes and decodes. All devices give the same bytes.

    Arrays are used where they lie: numpy's, torch's, and what has ``__dlpack__``. They have to be float32, float16 or
    bfloat16 with their elements one behind the other; outputs and residuals float32. Other threads must leave them alone
    until the call returns, since the GIL is released meanwhile.
    """

    @staticmethod
    def open() -> Device:
        """The best device: CUDA, else WGPU where the package was built with it, else the CPU."""
    @staticmethod
    def cpu() -> Device: ...
    @staticmethod
    def cuda() -> Device:
        """The first CUDA device. Raises UnavailableError."""
    @staticmethod
    def wgpu() -> Device:
        """The first device of Vulkan, Metal or DX12. Raises UnavailableError."""
    @property
    def kind(self) -> str:
        """``cpu``, ``cuda`` or ``wgpu``."""
    @property
    def name(self) -> str: ...
    @property
    def why(self) -> list[str]:
        """What :meth:`open` passed over, and why."""
    def encode(
        self,
        codec: str,
        gradient: Any,
        *,
        run: int = 0,
        step: int = 0,
        worker: int = 0,
        tensor: int = 0,
        residual: Any = None,
    ) -> Payload:
        """Compresses a gradient by a codec's text, as ``"qsgd:bits=4,bucket=64"`` or ``"topk:0.01+f16"``.

        ``run``, ``step``, ``worker`` and ``tensor`` decide the random draws. With ``+ef`` in the text, gradient plus
        ``residual`` is compressed, and what is not sent stays in ``residual``: float32, zeros at first, the same array
        at each step. Raises SettingError, NotFiniteError, DeviceError.
        """
    def decode(self, payload: Any, out: Any = None, *, elements: int | None = None) -> Any:
        """``out = decode(payload)``, and returns ``out``: a new numpy array of float32, unless one is handed over.

        ``elements`` is how many are expected. A payload says itself how many it has, and 32 bytes may say 2^31, which
        take 8.6 GB. So more than 2^24 elements, at more than 256 for each byte of the payload, are decoded only if
        ``elements`` or ``out`` names as many.
        """
    def decode_add(self, payload: Any, out: Any, weight: float = 1.0) -> None:
        """``out += weight * decode(payload)``."""
    def decode_sum(self, payloads: Sequence[Any], out: Any, weight: float = 1.0) -> None:
        """``out = weight * (decode(payloads[0]) + decode(payloads[1]) + ...)``, in this order."""

class Compressor:
    """Compresses the gradients of a model's tensors, exchanges them between ranks, and keeps what a step leaves.

    ``rules`` are pairs of a pattern of names and a recipe; the first that fits a tensor counts. Tensors of fewer than
    ``small`` elements go uncompressed. Every rank makes its compressor of the same arguments.
    """

    def __init__(
        self,
        recipe: str,
        shapes: Sequence[Sequence[int]],
        run: int = 0,
        *,
        names: Sequence[str] | None = None,
        rules: Sequence[tuple[str, str]] = (),
        small: int | None = None,
        all_reduce_only: bool = False,
    ) -> None: ...
    def exchange(
        self, device: Device, group: Group, gradient: Any, *, stream: Any = 0, in_place: bool = False
    ) -> None:
        """A step: ``gradient``, float32 with all tensors one behind the other, becomes the mean over all ranks.

        A gradient on the host is encoded by ``device``. One in a CUDA device's memory stays there: work is queued on
        ``stream``, a ``torch.cuda.Stream``, an object with ``__cuda_stream__``, or 0 for the default stream. It is a
        stream of the device's primary context. The state stays on the device, and moves when the stream changes.

        Torch's ``resize_`` frees a tensor's memory whoever holds the tensor. So the values of a tensor are copied, on the
        host or on its device, and the mean is written into the memory that the tensor has after the step; if it has
        another number of elements by then, RuntimeError is raised. With ``in_place=True`` the exchange works in the
        tensor's memory: nobody may resize or free it meanwhile, on any thread. An array of numpy is always exchanged in
        place, as it holds its memory.

        Where this fails, gradient and state are as they were. Raises ExchangeError, GroupError, NotFiniteError.
        """
    def undo(self) -> None:
        """Takes back the last step: the state is as before it, to the bit. The gradient keeps the mean.

        Every rank takes back the same steps, each right after its exchange, once. Raises ExchangeError where there is
        nothing to take back.
        """
    def state(self) -> bytes:
        """The state of this rank."""
    def restore(self, states: Sequence[bytes], rank: int, ranks: int) -> None:
        """Takes up the states of all ranks that there were, for rank ``rank`` of ``ranks`` that there are now."""
    def take_over(self, others: Sequence[Compressor]) -> None:
        """Takes over what other compressors keep of tensors of the same names."""
    def residual_into(self, out: Any) -> None:
        """Writes what has not been sent so far into an array of float32. What an owner keeps is not in it."""
    def owner_residual_into(self, out: Any) -> None:
        """Writes what this rank keeps of the sums that it quantized for all ranks: with ``twophase``, zeros without."""
    def clear_residual(self) -> None:
        """Forgets what has not been sent."""
    @property
    def elements(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def last_bytes(self) -> int:
        """Bytes that this rank handed over to the group in the last step."""
    @property
    def recipes(self) -> list[str]:
        """The recipe of each tensor."""

class Key:
    """A secret of 32 bytes that every rank of a group has, and nobody else: ``Key(secrets.token_bytes(32))``.

    It is not printed. Raises ValueError for another number of bytes.
    """

    def __init__(self, secret: Any) -> None: ...
    def seal(self, data: Any) -> bytes:
        """These bytes, followed by a code of 32 that only the key gives: for a payload or a state in a file.

        The code covers the bytes and nothing else: an older file of the same key opens as well.
        """
    def open(self, sealed: Any) -> bytes:
        """The bytes that ``seal`` was given. Raises PayloadError if they are of another key, or were changed."""

class Keyed:
    """A group whose messages are authenticated: each has a code of 32 bytes, HMAC of SHA-256, which takes the key.

    It wraps any group, and goes where a group does. Every rank makes it at the same point, with the same key. A message
    that was changed, made up, sent again or sent to another rank raises GroupError, which names the rank that it was said
    to be of; the group cannot be used any further. A rank with the key can still send anything, and nothing is encrypted.
    Raises GroupError where a rank has another key.
    """

    def __init__(self, group: Group, key: Key) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def all_gather(self, mine: Any) -> list[bytes]: ...
    def all_to_all(self, parts: Sequence[Any]) -> list[bytes]: ...
    def all_reduce_sum(self, values: bytearray) -> None: ...
    def exchange(self, peer: int, mine: Any) -> bytes: ...
    def broadcast(self, root: int, data: Any) -> bytes: ...

__version__: str

def recipe(text: str) -> str:
    """A recipe's text in full. Raises SettingError, which says what is wrong with it."""

def methods() -> list[tuple[str, str]]:
    """The published methods by name, each with its recipe: ``grace:<name>`` in a text."""

def drops(text: str) -> bool:
    """Whether a recipe loses what it leaves out: a selection that is not unbiased, without a memory. Raises SettingError."""

def has_feedback(text: str) -> bool:
    """Whether a codec's text has error feedback, so that an encode needs a residual. Raises SettingError."""
