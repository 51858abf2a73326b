//! Quantile buckets: a block sorts buckets in shared memory, and a thread makes a quantile's mean.

use super::codes;
use super::tile::{Buffers, of_item};
use crate::arith::float::{INF_BITS, MAGNITUDE, NAN_BITS, bf16_to_f32, canonical};
use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::arith::quantile::{Cuts, PAD, code, holds_not_finite, key, value};
use crate::device::{self, BINS, WARP};
use crate::params::{DECODE_SPAN, DecodeParams, EncodeParams, SPAN, THREADS, decode_flags, dtype, encode_flags, item};

/// Elements that are sorted at a time: those of the largest bucket, or of several smaller ones.
const PART: u32 = 4096;

/// Units of a warp in a part.
const UNITS: usize = (PART / (THREADS / WARP)) as usize / UNIT;
const _: () = assert!(UNITS == 2 && KEYS == UNITS * SLOTS, "half a warp sorts a unit");

/// Keys of a thread while they are sorted, those of consecutive places.
const KEYS: usize = (PART / THREADS) as usize;

/// Its base-2 logarithm.
const KEYS_LOG2: u32 = KEYS.trailing_zeros();

/// Writes a word of the stage.
///
/// # Safety
/// `index` is below twice [`PART`] less [`BINS`], and no other thread touches the word between two barriers.
#[inline(always)]
unsafe fn put_word(index: u32, word: u32) {
    // SAFETY: the stage has as many words.
    unsafe { device::stage_store(index, f32::from_bits(word)) }
}

/// Reads one.
///
/// # Safety
/// `index` as there, and no thread writes the word between the same two barriers.
#[inline(always)]
unsafe fn get_word(index: u32) -> u32 {
    // SAFETY: the stage has as many words.
    unsafe { device::stage_load(index) }.to_bits()
}

/// Leaves a thread's keys in the stage. Keys of consecutive places lie [`THREADS`] words apart, so that no two lanes
/// wait for a bank.
///
/// # Safety
/// No other thread reads the keys of this one before the next barrier.
#[inline(always)]
unsafe fn put_keys(keys: &[u32; KEYS]) {
    for i in 0..KEYS {
        // SAFETY: the place is one of the part's, and this thread's.
        unsafe { put_word(i as u32 * THREADS + device::thread(), keys[i]) };
    }
}

/// Reads the key of a place.
///
/// # Safety
/// `index` is below [`PART`], and no thread writes the key between the same two barriers.
#[inline(always)]
unsafe fn get_key(index: u32) -> u32 {
    // SAFETY: the place is one of the part's.
    unsafe { get_word(index % KEYS as u32 * THREADS + index / KEYS as u32) }
}

/// Writes an edge: half of those that a part may have lie after its keys, and half in the bins.
///
/// # Safety
/// `index` is below [`PART`], and no other thread touches the edge between two barriers.
#[inline(always)]
unsafe fn put_edge(index: u32, key: u32) {
    // SAFETY: bins and the rest of the stage have a word for each of the edges.
    unsafe { if index < BINS { device::bin_store(index, key) } else { put_word(PART + index - BINS, key) } }
}

/// Reads one.
///
/// # Safety
/// As [`get_key`].
#[inline(always)]
unsafe fn get_edge(index: u32) -> u32 {
    // SAFETY: bins and the rest of the stage have a word for each of the edges.
    unsafe { if index < BINS { device::bin_load(index) } else { get_word(PART + index - BINS) } }
}

const _: () = assert!(PART + PART - BINS <= device::STAGE, "a part may have as many edges as elements");

/// The value of an element as bits: gradient, or gradient + residual.
///
/// # Safety
/// The element is in the input and, with feedback, in the residual.
#[inline(always)]
unsafe fn load(p: &EncodeParams, b: &Buffers, at: usize) -> u32 {
    // SAFETY: the caller has the element.
    unsafe {
        let bits = if p.dtype == dtype::F32 {
            *b.input.cast::<u32>().add(at)
        } else {
            let half = *b.input.cast::<u16>().add(at);
            if p.dtype == dtype::F16 { device::half_to_f32(half).to_bits() } else { bf16_to_f32(half).to_bits() }
        };
        if p.has(encode_flags::FEEDBACK) { (f32::from_bits(bits) + *b.residual.add(at)).to_bits() } else { bits }
    }
}

/// Leaves the smaller of two of a thread's keys first.
#[inline(always)]
fn order(keys: &mut [u32; KEYS], low: usize, high: usize) {
    let (a, b) = (keys[low], keys[high]);
    keys[low] = a.min(b);
    keys[high] = a.max(b);
}

/// A step of a merge whose pairs are `APART` places apart, both of one thread.
#[inline(always)]
fn own<const APART: usize>(keys: &mut [u32; KEYS]) {
    for low in 0..KEYS {
        if low & APART == 0 {
            order(keys, low, low + APART);
        }
    }
}

/// The first step of a merge of `SIZE` keys: each with that of the place from the other end.
#[inline(always)]
fn mirrored<const SIZE: usize>(keys: &mut [u32; KEYS]) {
    for low in 0..KEYS {
        let high = low ^ (SIZE - 1);
        if low < high {
            order(keys, low, high);
        }
    }
}

/// The last steps of a merge.
#[inline(always)]
fn own_steps(keys: &mut [u32; KEYS]) {
    own::<8>(keys);
    own::<4>(keys);
    own::<2>(keys);
    own::<1>(keys);
}

/// Sorts the keys of a thread.
#[inline(always)]
fn sort_own(keys: &mut [u32; KEYS]) {
    mirrored::<2>(keys);
    mirrored::<4>(keys);
    own::<1>(keys);
    mirrored::<8>(keys);
    own::<2>(keys);
    own::<1>(keys);
    mirrored::<16>(keys);
    own::<4>(keys);
    own::<2>(keys);
    own::<1>(keys);
}

/// A step of a merge between this thread and that of number `thread ^ mask`, each key with that of the same place or,
/// `MIRRORED`, with that of the place from the other end. The upper thread keeps the larger ones.
///
/// # Safety
/// All threads of the block arrive together with the same mask; no thread reads keys in the stage until the next
/// barrier.
#[inline(always)]
unsafe fn trade<const MIRRORED: bool>(keys: &mut [u32; KEYS], mask: u32, upper: bool) {
    let mut others = [0; KEYS];
    if mask < WARP {
        for i in 0..KEYS {
            // SAFETY: all lanes are here.
            others[i] = unsafe { device::shuffle_xor(keys[if MIRRORED { KEYS - 1 - i } else { i }], mask) };
        }
    } else {
        let other = device::thread() ^ mask;
        // SAFETY: all threads are here, so that barriers lie between a key's writing, reading and next writing.
        unsafe {
            put_keys(keys);
            device::barrier();
            for i in 0..KEYS {
                others[i] = get_word((if MIRRORED { KEYS - 1 - i } else { i }) as u32 * THREADS + other);
            }
            device::barrier();
        }
    }
    for i in 0..KEYS {
        if (others[i] < keys[i]) != upper {
            keys[i] = others[i];
        }
    }
}

/// Sorts the part's buckets of 2^`log2` keys, all at once (Batcher's bitonic sorter, with its first step of a merge
/// mirrored). What a thread has is sorted in registers, what a warp has by shuffles.
///
/// # Safety
/// All threads of the block arrive together; no thread reads keys in the stage until the next barrier.
#[inline(always)]
unsafe fn sort(keys: &mut [u32; KEYS], log2: u32) {
    sort_own(keys);
    let mut size = KEYS_LOG2 + 1;
    while size <= log2 {
        let mut half = 1 << (size - KEYS_LOG2 - 1);
        let upper = |half: u32| device::thread() & half != 0;
        // SAFETY: sizes are the same for all threads.
        unsafe { trade::<true>(keys, 2 * half - 1, upper(half)) };
        half /= 2;
        while half > 0 {
            // SAFETY: as above.
            unsafe { trade::<false>(keys, half, upper(half)) };
            half /= 2;
        }
        own_steps(keys);
        size += 1;
    }
}

/// Encodes the elements of the launch from `first` on, a span's at most.
///
/// # Safety
/// As the encode kernels ask; all threads of the block arrive together.
#[inline(always)]
unsafe fn encode_span(p: &EncodeParams, b: &Buffers, first: u32) {
    // SAFETY: a guarded launch has a status.
    if p.has(encode_flags::GUARDED) && unsafe { *b.status } != 0 {
        return;
    }
    let end = (first + SPAN).min(p.n);
    let mut part = first;
    while part < end {
        // SAFETY: the caller's; where the part begins is the same for all threads.
        unsafe { encode_part(p, b, part) };
        part += PART;
    }
}

/// # Safety
/// As [`encode_span`].
#[inline(always)]
unsafe fn encode_part(p: &EncodeParams, b: &Buffers, part: u32) {
    let (warp, lane) = (device::thread() / WARP, device::thread() % WARP);
    let own = part + warp * (UNITS * UNIT) as u32 + lane;
    let mut tile = [[0; SLOTS]; UNITS];
    let mut keys = [PAD; KEYS];
    for unit in 0..UNITS {
        for slot in 0..SLOTS {
            let at = own + (unit * UNIT + slot * LANES) as u32;
            if at < p.n {
                // SAFETY: the element is there.
                tile[unit][slot] = unsafe { load(p, b, at as usize) };
                keys[unit * SLOTS + slot] = key(tile[unit][slot]);
            }
        }
    }
    // A unit is a bucket's, two may be of two buckets: the first half of the warp takes the first unit's keys.
    let second = lane >= WARP / 2;
    for slot in 0..SLOTS {
        let (first, other) = (keys[slot], keys[SLOTS + slot]);
        // SAFETY: all lanes are here.
        let got = unsafe { device::shuffle_xor(if second { first } else { other }, WARP / 2) };
        keys[slot] = if second { other } else { first };
        keys[SLOTS + slot] = got;
    }
    // SAFETY: all threads are here; keys of the part before were read in front of its last barrier.
    unsafe {
        sort(&mut keys, p.bucket_log2);
        put_keys(&keys);
        device::barrier();
    }
    let mut job = device::thread();
    while job < (PART >> p.bucket_log2) << p.bits {
        let (bucket, j) = (job >> p.bits, job & ((1 << p.bits) - 1));
        let start = bucket << p.bucket_log2;
        if part + start < p.n {
            let elements = (p.n - part - start).min(1 << p.bucket_log2);
            // SAFETY: nothing writes keys here, and the bucket is in the part.
            let at = |index: u32| unsafe { get_key(start + index) };
            let mut mean = NAN_BITS;
            if !holds_not_finite(at(0), at(elements - 1)) {
                let cuts = Cuts::new(1 << p.bits, elements, at);
                mean = cuts.mean(j, at).to_bits();
                // SAFETY: no other thread has the job.
                unsafe { put_edge(job, at(cuts.rank(j))) };
            }
            let to = ((part + start) >> p.bucket_log2 << p.bits) + j;
            // SAFETY: the bucket has an element, so its scalars are in the buffer, and this one is this thread's.
            unsafe { *b.scalars.add(to as usize) = mean };
        }
        job += THREADS;
    }
    // SAFETY: all threads are here.
    unsafe { device::barrier() };
    for unit in 0..UNITS {
        let first = own - lane + (unit * UNIT) as u32;
        if first < p.n {
            let edges = (first - part) >> p.bucket_log2 << p.bits;
            // SAFETY: the unit has an element, so its bucket's scalars are in the buffer.
            let means = unsafe { b.scalars.add((first >> p.bucket_log2 << p.bits) as usize) };
            // SAFETY: as above; a barrier is between the block's writes and this read.
            let poisoned = unsafe { *means } & MAGNITUDE >= INF_BITS;
            let mut unit_codes = [0; SLOTS];
            for slot in 0..SLOTS {
                let at = first + (slot * LANES) as u32 + lane;
                if at < p.n && !poisoned {
                    // SAFETY: the bucket is not poisoned, so its edges were written, in front of the barrier.
                    unit_codes[slot] = code(p.bits, key(tile[unit][slot]), |j| unsafe { get_edge(edges + j) });
                    if p.has(encode_flags::FEEDBACK) {
                        // SAFETY: the code is one of the bucket's, and the element is this lane's.
                        unsafe {
                            let decoded = f32::from_bits(*means.add(unit_codes[slot] as usize));
                            *b.residual.add(at as usize) = canonical(f32::from_bits(tile[unit][slot]) - decoded);
                        }
                    }
                }
            }
            let at = (first as usize / UNIT) * unit_bytes(p.bits);
            // SAFETY: the unit has an element, so its codes are in the buffer.
            unsafe { codes::store(b.codes.add(at), lane, p.bits, &unit_codes) };
        }
    }
}

/// The buffers of the decode kernels.
#[derive(Clone, Copy)]
struct Wire {
    scalars: *const u32,
    codes: *const u8,
    output: *mut f32,
}

/// Decodes a span of 2048 elements.
///
/// # Safety
/// As the decode kernels ask.
#[inline(always)]
unsafe fn decode_span(p: &DecodeParams, b: &Wire, span: u32) {
    let (warp, lane) = (device::thread() / WARP, device::thread() % WARP);
    let first = span * DECODE_SPAN + warp * UNIT as u32;
    if first >= p.n {
        return;
    }
    let here = |slot: usize| first + (slot * LANES) as u32 + lane;
    let mut values = [0.0; SLOTS];
    if p.has(decode_flags::ACCUMULATE) {
        for slot in 0..SLOTS {
            if here(slot) < p.n {
                // SAFETY: the element is there.
                values[slot] = unsafe { *b.output.add(here(slot) as usize) };
            }
        }
    }
    let (bucket, unit) = ((first >> p.bucket_log2 << p.bits) as usize, (first as usize / UNIT) * unit_bytes(p.bits));
    let mut payload = 0;
    while payload < p.payloads {
        // SAFETY: the unit has an element, so its codes and its bucket's scalars are in every payload.
        unsafe {
            let from = b.codes.add(payload as usize * p.code_stride as usize * 4 + unit);
            let unit_codes = codes::unpack(&codes::load(from, lane, p.bits), p.bits);
            let means = b.scalars.add(payload as usize * p.scalar_stride as usize + bucket);
            for slot in 0..SLOTS {
                let mean = f32::from_bits(value(*means.add((unit_codes[slot] & ((1 << p.bits) - 1)) as usize)));
                // Without the canonical NaN, which is left for the end: a NaN stays one.
                values[slot] = if p.has(decode_flags::WEIGHTED) { values[slot] + p.weight() * mean } else { mean };
            }
        }
        payload += 1;
    }
    for slot in 0..SLOTS {
        if here(slot) < p.n {
            // SAFETY: the element is there, and no other lane's.
            unsafe { *b.output.add(here(slot) as usize) = canonical(values[slot]) };
        }
    }
}

kernel! {
    /// Encodes.
    ///
    /// # What
    /// `arith/quantile.rs` has the formula: the bucket's elements (plus residuals) are sorted and cut, each quantile's
    /// mean is a scalar on the wire, and an element's code is its quantile. With feedback, the residual becomes the
    /// element plus the residual minus the mean.
    ///
    /// # Arguments
    /// * `p`: `n`, `bucket_log2` (8 to 12), `bits` (2 to 8), `dtype` and `flags` are read.
    /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
    /// * `residual`: with feedback, `n` f32, of which none is the input's. Read, and written where the bucket is not
    ///   poisoned. Else null.
    /// * `scalars`: `2^bits` f32 per bucket. Written, and read again.
    /// * `codes`: `ceil(n / 256)` units of `32 bits` bytes, aligned to 4. Written, all of them.
    /// * `workspace`: not used.
    /// * `status`: where the launch is guarded, a word: unless it is zero, nothing is written. Read. Else null.
    ///
    /// # Thread mapping
    /// A block takes 8192 elements, 4096 at a time, which it sorts in 78 steps at most of 8 pairs per thread; a thread
    /// makes one mean after another; a lane has 8 elements of a unit of 256, 32 apart.
    ///
    /// # Shared memory
    /// 24 KiB of the stage and 8 KiB of bins.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(n / 8192)` of them, 1 <= n <= 2^31; the first element starts a unit and a bucket.
    ///
    /// # Traffic
    /// f32: 4 bytes per element in, `bits / 8` out, and the scalars. Half types 2 in. With feedback 8 more.
    /// Uncoalesced: with feedback a lane reads the mean that its code names, as `quantile_decode`. Conflicts: threads look for edges
    /// and sum keys where the quantiles are.
    ///
    /// # Determinism
    /// Backend to backend: sorted keys and sums of integers do not depend on order.
    ///
    /// # Edge cases
    /// A bucket with a NaN or an infinity has the one NaN as every scalar and codes of zero, and its residual stays as
    /// it was.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn quantile_encode(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        // SAFETY: the kernel's contract; all threads are here.
        unsafe { encode_span(&p, &b, device::block() * SPAN) }
    }
}

kernel! {
    /// Encodes many tensors that lie in one buffer.
    ///
    /// # What
    /// What `quantile_encode` makes of each tensor alone.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `base`, `n` and `first_unit` are not read, the rest is as `quantile_encode`
    ///   has it.
    /// * `input`, `residual`: as `quantile_encode` has them, of the flat buffer.
    /// * `scalars`, `codes`: those of all tensors. Written.
    /// * `workspace`: the table of [`item`]. Read.
    /// * `status`: as `quantile_encode` has it.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `quantile_encode`.
    ///
    /// # Shared memory
    /// As `quantile_encode`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on.
    ///
    /// # Traffic
    /// As `quantile_encode`, and 32 bytes of the table per item.
    ///
    /// # Determinism
    /// As `quantile_encode`.
    ///
    /// # Edge cases
    /// As `quantile_encode`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn quantile_encode_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        // SAFETY: the kernel's contract covers the table and what its items say; all threads are here.
        unsafe {
            let (p, b) = of_item(&p, &b);
            encode_span(&p, &b, 0);
        }
    }
}

kernel! {
    /// Decodes a payload, or a weighted sum of some.
    ///
    /// # What
    /// The mean that a code names, or the one NaN where that is not finite. Without `WEIGHTED` the output is that. With
    /// it, the output is `((start + w v0) + w v1) + ...` in the order of the payloads, where `start` is what the output
    /// held with `ACCUMULATE`, and 0 without.
    ///
    /// # Arguments
    /// * `p`: all of it but `levels` is read.
    /// * `scalars`: `payloads` times `2^bits` f32 per bucket, `scalar_stride` words apart. Read.
    /// * `codes`: `payloads` times `ceil(n / 256)` units of `32 bits` bytes, aligned to 4, `code_stride` words apart.
    ///   Read.
    /// * `output`: `n` f32. Read with `ACCUMULATE`; written.
    ///
    /// # Thread mapping
    /// A block takes 2048 elements, a warp a unit of 256 of them, each lane 8, 32 apart.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(n / 2048)` of them, 1 <= n <= 2^31; the first element starts a unit and a bucket.
    ///
    /// # Traffic
    /// `bits / 8` bytes per element and payload in, and the scalars; 4 out, 4 in with `ACCUMULATE`. Uncoalesced: lanes
    /// read the means that their codes name, of which a bucket has 1 KiB at most.
    ///
    /// # Determinism
    /// Backend to backend: the order of the sum is fixed, and each operation is rounded once.
    ///
    /// # Edge cases
    /// A mean that no encoder writes decodes to the one NaN.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above. Scalars and codes may be
    /// any bytes.
    fn quantile_decode(p: DecodeParams, scalars: *const u32, codes: *const u8, output: *mut f32) {
        // SAFETY: the kernel's contract.
        unsafe { decode_span(&p, &Wire { scalars, codes, output }, device::block()) }
    }
}

kernel! {
    /// Decodes onto many tensors that lie in one buffer.
    ///
    /// # What
    /// What `quantile_decode` makes of each tensor alone.
    ///
    /// # Arguments
    /// * `p`: `first_item` is the first item; `n` is not read, the rest is as `quantile_decode` has it.
    /// * `scalars`, `codes`: those of all tensors. Read.
    /// * `output`: the flat buffer. Read with `ACCUMULATE`; written where a tensor lies.
    /// * `table`: the table of [`item`]. Read.
    ///
    /// # Thread mapping
    /// Four blocks take an item; within it as `quantile_decode`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, four times as many as items from `first_item` on.
    ///
    /// # Traffic
    /// As `quantile_decode`, and 16 bytes of the table per block.
    ///
    /// # Determinism
    /// As `quantile_decode`.
    ///
    /// # Edge cases
    /// As `quantile_decode`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn quantile_decode_segments(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
        table: *const u32,
    ) {
        const PARTS: u32 = SPAN / DECODE_SPAN;
        let at = item::HEADER + (p.first_item + device::block() / PARTS) * item::WORDS;
        // SAFETY: the kernel's contract has an item for every four blocks, and what it says is in the buffers.
        unsafe {
            let word = |index: u32| *table.add((at + index) as usize) as usize;
            let p = DecodeParams { n: word(item::ELEMENTS) as u32, ..p };
            let b = Wire {
                scalars: scalars.add(word(item::SCALARS)),
                codes: codes.add(word(item::CODES) * 4),
                output: output.add(word(item::START)),
            };
            decode_span(&p, &b, device::block() % PARTS);
        }
    }
}
