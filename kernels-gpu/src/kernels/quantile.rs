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

/// Pairs that a thread compares in a step of the sort.
const PAIRS: u32 = PART / 2 / THREADS;

/// Writes the key of an element of the part.
///
/// # Safety
/// `index` is below [`PART`], and no other thread touches the key between two barriers.
#[inline(always)]
unsafe fn put_key(index: u32, key: u32) {
    // SAFETY: the stage has more words than a part has elements.
    unsafe { device::stage_store(index, f32::from_bits(key)) }
}

/// Reads one.
///
/// # Safety
/// `index` is below [`PART`], and no thread writes the key between the same two barriers.
#[inline(always)]
unsafe fn get_key(index: u32) -> u32 {
    // SAFETY: the stage has more words than a part has elements.
    unsafe { device::stage_load(index) }.to_bits()
}

/// Writes an edge: half of those that a part may have lie behind its keys, and half in the bins.
///
/// # Safety
/// As [`put_key`].
#[inline(always)]
unsafe fn put_edge(index: u32, key: u32) {
    // SAFETY: bins and the rest of the stage have a word for each of the edges.
    unsafe { if index < BINS { device::bin_store(index, key) } else { put_key(PART + index - BINS, key) } }
}

/// Reads one.
///
/// # Safety
/// As [`get_key`].
#[inline(always)]
unsafe fn get_edge(index: u32) -> u32 {
    // SAFETY: bins and the rest of the stage have a word for each of the edges.
    unsafe { if index < BINS { device::bin_load(index) } else { get_key(PART + index - BINS) } }
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

/// Leaves the smaller of two keys first.
///
/// # Safety
/// As [`put_key`], for both.
#[inline(always)]
unsafe fn exchange(low: u32, high: u32) {
    // SAFETY: the caller has both keys to itself.
    unsafe {
        let (a, b) = (get_key(low), get_key(high));
        put_key(low, a.min(b));
        put_key(high, a.max(b));
    }
}

/// Sorts the part's buckets of 2^`log2` keys, all at once (Batcher's bitonic sorter, with its first step of a merge
/// mirrored).
///
/// # Safety
/// All threads of the block arrive together, behind a barrier; they leave behind one.
#[inline(always)]
unsafe fn sort(log2: u32) {
    let mut size = 1;
    while size <= log2 {
        let mut step = size;
        while step > 0 {
            let distance = 1 << (step - 1);
            for pair in 0..PAIRS {
                let index = device::thread() + THREADS * pair;
                let low = (index >> (step - 1) << step) | (index & (distance - 1));
                let high = if step == size { low ^ (2 * distance - 1) } else { low + distance };
                // SAFETY: pairs of a step have no key in common.
                unsafe { exchange(low, high) };
            }
            // SAFETY: sizes are the same for all threads.
            unsafe { device::barrier() };
            step -= 1;
        }
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
    for unit in 0..UNITS {
        for slot in 0..SLOTS {
            let at = own + (unit * UNIT + slot * LANES) as u32;
            let mut sorted = PAD;
            if at < p.n {
                // SAFETY: the element is there.
                tile[unit][slot] = unsafe { load(p, b, at as usize) };
                sorted = key(tile[unit][slot]);
            }
            // SAFETY: no other thread has the element.
            unsafe { put_key(at - part, sorted) };
        }
    }
    // SAFETY: all threads are here.
    unsafe {
        device::barrier();
        sort(p.bucket_log2);
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
            // SAFETY: as above; what the block wrote lies behind a barrier.
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
