//! PowerSGD's passes over all matrices of a model at once: cut into slabs of rows, shared out to the threads, and summed in an
//! order that depends on the shapes alone.

use gradwire_kernels::arith::float::{NAN_BITS, bf16_to_f32, f16_to_f32};
use gradwire_kernels::arith::philox::Stream;
use gradwire_kernels::arith::powersgd::{kept, seeded};
use rayon::prelude::*;

use super::lanes::{LANES, Line};
use super::slab::{Before, Rows, Slab, tile_width, tiled};
use super::{Cpu, for_each, gram, part as slice};
use crate::gradient::Gradient;
use crate::low_rank::{Part, Side, Table};

/// Elements of a slab, about.
const SLAB: usize = 1 << 19;
/// The most rows of a slab: so many terms of a sum are added in f32, one after another.
const MOST_ROWS: usize = 512;
/// Rows of a slab are a multiple of this, where the matrix has as many.
const GROUP: usize = 8;

/// What gradient + residual is formed from.
pub(crate) struct Matrices<'a> {
    pub(crate) table: &'a Table,
    pub(crate) sums: &'a mut [f32],
    pub(crate) left: &'a [f32],
    pub(crate) right: &'a [f32],
    pub(crate) sent: &'a [bool],
    pub(crate) feedback: bool,
}

/// Rows of each slab of a matrix but the last.
fn slab_rows(part: &Part) -> usize {
    (SLAB / part.columns.max(1)).clamp(GROUP, MOST_ROWS) / GROUP * GROUP
}

/// A slab's place: its first row, and its rows.
fn slabs(part: &Part) -> impl Iterator<Item = (usize, usize)> {
    let (each, rows) = (slab_rows(part), part.rows);
    (0..rows.div_ceil(each)).map(move |s| (s * each, each.min(rows - s * each)))
}

/// Entries that a slab writes.
fn share(part: &Part, rank: usize, rows: usize, known: Side) -> usize {
    match known {
        Side::Right => rows * rank,
        Side::Left => part.columns.div_ceil(tile_width(part, rank)) * tile_width(part, rank) * rank,
    }
}

/// A factor as the passes take it.
enum Prepared<'f> {
    AsItIs(&'f [f32]),
    Tiled(Vec<Line>),
}

impl std::ops::Deref for Prepared<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::AsItIs(factor) => factor,
            Self::Tiled(tiles) => bytemuck::cast_slice(tiles),
        }
    }
}

/// The factors of each matrix as the passes take them: right ones in tiles, left ones as they are.
fn prepared<'f>(table: &Table, side: Side, factors: &'f [f32]) -> Vec<Prepared<'f>> {
    let of_part = |(_, part): (usize, &Part)| {
        let mine = &factors[part.start(side)..][..part.stride(side) * table.rank];
        match side {
            Side::Left => Prepared::AsItIs(mine),
            Side::Right => Prepared::Tiled(tiled(part, table.rank, mine)),
        }
    };
    table.compressed().map(of_part).collect()
}

impl Before {
    fn of(feedback: bool, sent: bool) -> Self {
        match (feedback, sent) {
            (false, _) => Self::Nothing,
            (true, false) => Self::Sums,
            (true, true) => Self::Rest,
        }
    }
}

impl Cpu {
    /// Makes the columns of every matrix's factor orthonormal. With streams, columns that depend on others are replaced by
    /// seeded ones first, as often as it takes for chance to do its part.
    pub(crate) fn orthonormalise(&self, table: &Table, side: Side, factors: &mut [f32], seeds: Option<&[Stream]>) {
        let simd = self.simd;
        let tasks = table.compressed().map(|(_, part)| part).zip(table.split_padded(side, factors)).enumerate();
        for_each(tasks.collect(), |(place, (part, factor))| {
            let (stride, dimension) = (part.stride(side), part.dimension(side));
            let independent = gram::orthonormalise(simd, factor, stride, table.rank);
            let Some(stream) = seeds.map(|seeds| seeds[place]).filter(|_| independent.contains(&false)) else { return };
            for (k, column) in factor.chunks_exact_mut(stride).enumerate().filter(|(k, _)| !independent[*k]) {
                column[..dimension].iter_mut().zip(0..).for_each(|(entry, i)| *entry = seeded(stream, k as u32, i));
            }
            gram::orthonormalise(simd, factor, stride, table.rank);
        });
    }

    /// Forms gradient + residual in `sums`, and multiplies it by the factors of the side `known`, into the factors of the
    /// other as they are sent.
    pub(crate) fn begin_low_rank(
        &self,
        matrices: &mut Matrices<'_>,
        gradient: Gradient<'_>,
        input: &[f32],
        known: Side,
        sent: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let table = matrices.table;
        let (inputs, rights) = (prepared(table, known, input), prepared(table, Side::Right, matrices.right));
        let mut places = 0..;
        let mut work = Work::new(table, known, scratch);
        let mut sums = &mut *matrices.sums;
        for (index, part) in table.parts.iter().enumerate() {
            let (mut mine, others) = std::mem::take(&mut sums).split_at_mut(part.elements());
            sums = others;
            if !part.compressed {
                let waits = matrices.feedback && !matrices.sent[index];
                form_plain(slice(gradient, part.first, part.elements()), mine, waits);
                continue;
            }
            let before = Before::of(matrices.feedback, matrices.sent[index]);
            let place = places.next().unwrap_or_default();
            let (input, left, right) = (&inputs[place], &matrices.left[part.left..], &rights[place]);
            for (first, rows) in slabs(part) {
                let (sums, others) = std::mem::take(&mut mine).split_at_mut(rows * part.columns);
                mine = others;
                let gradient = slice(gradient, part.first + first * part.columns, sums.len());
                work.add(table, part, first, rows, Rows::Form { gradient, sums, before, left, right }, input, known);
            }
        }
        for_each(work.slabs, |slab| self.simd.multiply(slab));
        gather(table, known, scratch, sent);
    }

    /// Multiplies gradient + residual, formed before, by the factors of the side `known`.
    pub(crate) fn multiply_low_rank(
        &self,
        table: &Table,
        sums: &[f32],
        input: &[f32],
        known: Side,
        sent: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let inputs = prepared(table, known, input);
        let mut work = Work::new(table, known, scratch);
        for ((_, part), input) in table.compressed().zip(&inputs) {
            for (first, rows) in slabs(part) {
                let start = part.first + first * part.columns;
                let formed = &sums[start..start + rows * part.columns];
                work.add(table, part, first, rows, Rows::Formed(formed), input, known);
            }
        }
        // The pass before ended with the last slabs: a part of them is still in a cache.
        work.slabs.reverse();
        for_each(work.slabs, |slab| self.simd.multiply(slab));
        gather(table, known, scratch, sent);
    }

    /// Writes L R^T of each matrix, or NaN where it is poisoned.
    pub(crate) fn expand_low_rank(
        &self,
        table: &Table,
        left: &[f32],
        right: &[f32],
        poisoned: &[bool],
        output: &mut [f32],
    ) {
        let rights = prepared(table, Side::Right, right);
        let mut rights = rights.iter().peekable();
        let mut tasks = Vec::new();
        let mut output = output;
        for (index, part) in table.parts.iter().enumerate() {
            let (mut mine, others) = std::mem::take(&mut output).split_at_mut(part.elements());
            output = others;
            let Some(right) = rights.next_if(|_| part.compressed) else { continue };
            for (first, rows) in slabs(part) {
                let (out, others) = std::mem::take(&mut mine).split_at_mut(rows * part.columns);
                mine = others;
                tasks.push((part, first, right, poisoned[index], out));
            }
        }
        for_each(tasks, |(part, first, right, poisoned, out)| {
            if poisoned {
                out.fill(f32::from_bits(NAN_BITS));
            } else {
                self.simd.expand(*part, table.rank, first, &left[part.left..], right, out);
            }
        });
    }

    /// The first element of gradient + residual that is not finite.
    pub(crate) fn low_rank_not_finite(&self, matrices: &Matrices<'_>, gradient: Gradient<'_>) -> Option<u64> {
        let table = matrices.table;
        let of_part = |(index, part): (usize, &Part)| {
            let rank = if part.compressed { table.rank } else { 0 };
            // A tensor that is not compressed is a row of its own here.
            let part = if part.compressed { *part } else { Part { rows: 1, columns: part.elements(), ..*part } };
            let before = match Before::of(matrices.feedback, matrices.sent[index]) {
                Before::Rest if rank == 0 => Before::Nothing,
                before => before,
            };
            let left = if rank > 0 { &matrices.left[part.left..] } else { &[] };
            let right = if rank > 0 {
                Prepared::Tiled(tiled(&part, rank, &matrices.right[part.right..]))
            } else {
                Prepared::AsItIs(&[])
            };
            let places: Vec<_> = slabs(&part).collect();
            places.into_par_iter().find_map_first(|(first, rows)| {
                let start = part.first + first * part.columns;
                let sums = &matrices.sums[start..start + rows * part.columns];
                let gradient = slice(gradient, start, sums.len());
                let rows = Rows::Form { gradient, sums: &mut [], before, left, right: &right };
                let slab = Slab { part, rank, first, rows, input: &[], known: Side::Right, out: &mut [] };
                Some((start + self.simd.first_not_finite(slab, sums)?) as u64)
            })
        };
        table.parts.par_iter().enumerate().filter(|(_, part)| part.elements() > 0).find_map_first(of_part)
    }
}

/// Gradient, and what was not sent before, of a tensor that is not compressed.
fn form_plain(gradient: Gradient<'_>, sums: &mut [f32], waits: bool) {
    let before = |sum: f32| if waits { kept(sum, 0.0) } else { 0.0 };
    match gradient {
        Gradient::F32(x) => sums.iter_mut().zip(x).for_each(|(sum, v)| *sum = v + before(*sum)),
        Gradient::F16(x) => {
            sums.iter_mut().zip(x).for_each(|(sum, v)| *sum = f16_to_f32(v.to_bits()) + before(*sum));
        }
        Gradient::Bf16(x) => {
            sums.iter_mut().zip(x).for_each(|(sum, v)| *sum = bf16_to_f32(v.to_bits()) + before(*sum));
        }
    }
}

/// Where in a buffer the first whole cache line begins. Only speed depends on it.
fn line_start(of: &[f32]) -> usize {
    of.as_ptr().align_offset(size_of::<Line>()).min(LANES)
}

/// Slabs to be multiplied, each with its own part of the scratch to write to.
struct Work<'a> {
    slabs: Vec<Slab<'a>>,
    room: &'a mut [f32],
}

impl<'a> Work<'a> {
    fn new(table: &Table, known: Side, scratch: &'a mut Vec<f32>) -> Self {
        let of_part = |(_, part)| slabs(part).map(|(_, rows)| share(part, table.rank, rows, known)).sum::<usize>();
        let needed: usize = table.compressed().map(of_part).sum();
        if scratch.len() < needed + LANES {
            scratch.resize(needed + LANES, 0.0);
        }
        let start = line_start(scratch);
        Self { slabs: Vec::new(), room: &mut scratch[start..start + needed] }
    }

    #[expect(clippy::too_many_arguments, reason = "each is a field of the slab")]
    fn add(
        &mut self,
        table: &Table,
        part: &Part,
        first: usize,
        rows: usize,
        of: Rows<'a>,
        input: &'a [f32],
        known: Side,
    ) {
        let (out, room) = std::mem::take(&mut self.room).split_at_mut(share(part, table.rank, rows, known));
        self.room = room;
        self.slabs.push(Slab { part: *part, rank: table.rank, first, rows: of, input, known, out });
    }
}

/// Puts together what the slabs wrote: the rows of left factors, or sums of right factors in the order of the slabs.
fn gather(table: &Table, known: Side, scratch: &[f32], sent: &mut [f32]) {
    let rank = table.rank;
    let mut tasks = Vec::new();
    let mut room = &scratch[line_start(scratch)..];
    for ((_, part), out) in table.compressed().zip(table.split_mut(known.other(), sent)) {
        let each = share(part, rank, slab_rows(part).min(part.rows), known);
        let used = slabs(part).map(|(_, rows)| share(part, rank, rows, known)).sum();
        let (mine, others) = room.split_at(used);
        room = others;
        match known {
            Side::Right => tasks.push((part, mine, each, out)),
            // The shares have one layout, and are summed as they lie.
            Side::Left => tasks.push((part, mine, each, out)),
        }
    }
    for_each(tasks, |(part, shares, each, out)| match known {
        Side::Right => {
            for (k, column) in out.chunks_exact_mut(part.rows).enumerate() {
                column.iter_mut().zip(shares[k..].iter().step_by(rank)).for_each(|(to, from)| *to = *from);
            }
        }
        Side::Left => {
            let mut sums = vec![0.0; each];
            let strips = sums.chunks_mut(STRIP).enumerate().collect();
            for_each(strips, |(at, sums)| sum_in_order(&shares[at * STRIP..], each, sums));
            let width = tile_width(part, rank);
            for (t, tile) in sums.chunks_exact(width * rank).enumerate() {
                for (k, from) in tile.chunks_exact(width).enumerate() {
                    let to = &mut out[k * part.columns..][..part.columns][t * width..];
                    let here = to.len().min(width);
                    to[..here].copy_from_slice(&from[..here]);
                }
            }
        }
    });
}

/// Entries that are summed together, and shared out together.
const STRIP: usize = 1024;

/// Sums shares that lie `each` apart, in f64 and in order.
fn sum_in_order(shares: &[f32], each: usize, out: &mut [f32]) {
    let mut sums = [0.0f64; STRIP];
    for share in shares.chunks(each) {
        sums.iter_mut().zip(&share[..out.len().min(share.len())]).for_each(|(sum, v)| *sum += f64::from(*v));
    }
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
}
