//! PowerSGD's passes over all matrices of a model at once: cut into slabs of rows, shared out to the threads, and
//! summed in an order that depends on the shapes alone.

use gradwire_kernels::arith::float::{NAN_BITS, canonical};
use gradwire_kernels::arith::philox::Stream;
use gradwire_kernels::arith::powersgd::seeded;

use super::device::Cpu;
use super::lanes::{LANES, Line};
use super::orthonormal;
use super::slab::{Before, Form, Rows, Slab, group_of, line_up, lines_of, tile, tiles_of};
use super::tasks::for_each;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{Part, Side, Table};
use crate::threads;
use crate::words::{reserved, zeros};

/// Elements of a slab, about.
const SLAB: usize = 1 << 19;
/// The most rows of a slab: this many terms of a sum are added in f32, one after another.
const MOST_ROWS: usize = 512;
/// Rows of a slab are a multiple of this, where the matrix has as many.
const GROUP: usize = 8;

/// What gradient + residual is formed from.
pub(crate) struct Matrices<'a> {
    pub(crate) table: &'a Table,
    pub(crate) sums: &'a mut [f32],
    /// The sums of the step before, if they are not in `sums`.
    pub(crate) aside: Option<&'a [f32]>,
    pub(crate) left: &'a [f32],
    pub(crate) right: &'a [f32],
    pub(crate) sent: &'a [bool],
    pub(crate) feedback: bool,
}

/// A matrix as a pass cuts it: what is written of each slab decides, beside the shape, how many rows one has.
#[derive(Clone, Copy)]
struct Cut<'t> {
    part: &'t Part,
    rank: usize,
    /// Which factor is multiplied by.
    known: Side,
}

impl<'t> Cut<'t> {
    fn of(table: &'t Table, part: &'t Part, known: Side) -> Self {
        Self { part, rank: table.rank, known }
    }

    /// Rows of each slab but the last. Where a slab's share is of the right factor, it has at least four times as many
    /// rows as the factor has columns: so all shares together are a quarter of the matrix, and one more.
    fn slab_rows(&self) -> usize {
        // Each row of a left factor is a sum of its own: no order depends on how many rows a slab has.
        let (least, group) = match self.known {
            Side::Right => (group_of(self.part, self.rank), group_of(self.part, self.rank)),
            Side::Left => ((4 * self.rank).next_multiple_of(GROUP), GROUP),
        };
        (SLAB / self.part.columns.max(1)).clamp(least, MOST_ROWS) / group * group
    }

    /// A slab's place: its first row, and its rows.
    fn slabs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (each, rows) = (self.slab_rows(), self.part.rows);
        (0..rows.div_ceil(each)).map(move |s| (s * each, each.min(rows - s * each)))
    }

    /// Entries that a slab of `rows` rows writes.
    fn share(&self, rows: usize) -> usize {
        match self.known {
            Side::Right => rows * self.rank,
            Side::Left => self.part.column_stride() * self.rank,
        }
    }

    /// Entries that all slabs write.
    fn shares(&self) -> usize {
        self.slabs().map(|(_, rows)| self.share(rows)).sum()
    }
}

/// What the memory of copied factors is for, in an error.
const FACTORS: &str = "the factors of PowerSGD";

/// Memory that a pass needs beside the state. It is allocated before anything is changed.
pub(crate) struct PassMemory {
    /// For the right factor of each matrix in tiles, where products are of right ones.
    tiles: Vec<Vec<Line>>,
    /// For the right factor of each matrix in lines, as L R^T takes it.
    lines: Vec<Vec<Line>>,
    /// For what the slabs write. It may have been another pass's.
    pub(crate) scratch: Vec<f32>,
}

impl PassMemory {
    /// That of a product by the factors of a side, and of L R^T before it where `forms` says so.
    ///
    /// # Errors
    /// [`Error::Backend`] if it cannot be had.
    pub(crate) fn of_product(table: &Table, known: Side, forms: bool, mut scratch: Vec<f32>) -> Result<Self, Error> {
        let needed = room(table, known) + LANES;
        if scratch.len() < needed {
            // Not both at once.
            drop(scratch);
            scratch = zeros(needed as u64, "the products of PowerSGD")?;
        }
        let tiles = if known == Side::Right { each_matrix(table, tiles_of)? } else { Vec::new() };
        Ok(Self { tiles, lines: if forms { each_matrix(table, lines_of)? } else { Vec::new() }, scratch })
    }

    /// That of L R^T.
    ///
    /// # Errors
    /// As [`PassMemory::of_product`].
    pub(crate) fn of_expansion(table: &Table) -> Result<Self, Error> {
        Ok(Self { tiles: Vec::new(), lines: each_matrix(table, lines_of)?, scratch: Vec::new() })
    }
}

/// Lines of zeros for each matrix.
fn each_matrix(table: &Table, count: impl Fn(&Part, usize) -> usize) -> Result<Vec<Vec<Line>>, Error> {
    let mut all = reserved(table.compressed().count(), FACTORS)?;
    for (_, part) in table.compressed() {
        all.push(zeros(count(part, table.rank) as u64, FACTORS)?);
    }
    Ok(all)
}

/// The factors of each matrix as products take them: right ones in tiles, left ones as they are.
fn inputs<'f>(table: &Table, side: Side, factors: &'f [f32], tiles: &'f mut [Vec<Line>]) -> Vec<&'f [f32]> {
    let own = |part: &Part| &factors[part.start(side)..][..part.stride(side) * table.rank];
    let parts = table.compressed().map(|(_, part)| part);
    match side {
        Side::Left => parts.map(own).collect(),
        Side::Right => {
            let of_part = |(part, tiles): (&Part, &'f mut Vec<Line>)| {
                tile(part, table.rank, own(part), tiles);
                bytemuck::cast_slice(tiles)
            };
            parts.zip(tiles).map(of_part).collect()
        }
    }
}

/// The right factors of each matrix as L R^T takes them.
fn rights<'l>(table: &Table, factors: &[f32], lines: &'l mut [Vec<Line>]) -> Vec<&'l [f32]> {
    let of_part = |((_, part), lines): ((usize, &Part), &'l mut Vec<Line>)| {
        line_up(part, table.rank, &factors[part.right..], lines);
        bytemuck::cast_slice(lines)
    };
    table.compressed().zip(lines).map(of_part).collect()
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
    /// Makes the columns of every matrix's factor orthonormal. With streams, columns that depend on others are replaced
    /// by seeded ones first, as often as it takes for chance to do its part.
    pub(crate) fn orthonormalise(&self, table: &Table, side: Side, factors: &mut [f32], seeds: Option<&[Stream]>) {
        let simd = self.simd();
        let tasks = table.compressed().map(|(_, part)| part).zip(table.split_padded(side, factors)).enumerate();
        for_each(tasks.collect(), |(place, (part, factor))| {
            let (stride, dimension) = (part.stride(side), part.dimension(side));
            let independent = orthonormal::orthonormalise(simd, factor, stride, table.rank);
            let Some(stream) = seeds.map(|seeds| seeds[place]).filter(|_| independent.contains(&false)) else { return };
            for (k, column) in factor.chunks_exact_mut(stride).enumerate().filter(|(k, _)| !independent[*k]) {
                column[..dimension].iter_mut().zip(0..).for_each(|(entry, i)| *entry = seeded(stream, k as u32, i));
            }
            orthonormal::orthonormalise(simd, factor, stride, table.rank);
        });
    }

    /// Forms gradient + residual of the compressed matrices in `sums`, and multiplies it by the factors of the side
    /// `known`, into the factors of the other as they are sent. The memory is that of a product that forms.
    pub(crate) fn begin_low_rank(
        &self,
        matrices: &mut Matrices<'_>,
        gradient: Gradient<'_>,
        input: &[f32],
        known: Side,
        sent: &mut [f32],
        memory: &mut PassMemory,
    ) {
        let table = matrices.table;
        let PassMemory { tiles, lines, scratch } = memory;
        let (inputs, rights) = (inputs(table, known, input, tiles), rights(table, matrices.right, lines));
        let mut places = 0..;
        let mut work = Slabs::new(table, known, scratch);
        let mut sums = &mut *matrices.sums;
        for (index, part) in table.parts.iter().enumerate() {
            let (mut mine, others) = std::mem::take(&mut sums).split_at_mut(part.elements());
            sums = others;
            if !part.compressed {
                continue;
            }
            let before = Before::of(matrices.feedback, matrices.sent[index]);
            let place = places.next().unwrap_or_default();
            let (input, left, right) = (inputs[place], &matrices.left[part.left..], rights[place]);
            let cut = Cut::of(table, part, known);
            for (first, rows) in cut.slabs() {
                let (sums, others) = std::mem::take(&mut mine).split_at_mut(rows * part.columns);
                mine = others;
                let start = part.first + first * part.columns;
                let aside = matrices.aside.map(|aside| &aside[start..start + sums.len()]);
                let gradient = gradient.part(start, sums.len());
                work.add(&cut, first, rows, Rows::Form(Form { gradient, sums, aside, before, left, right }), input);
            }
        }
        for_each(work.slabs, |slab| self.simd().multiply(slab));
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
        memory: &mut PassMemory,
    ) {
        let PassMemory { tiles, scratch, .. } = memory;
        let inputs = inputs(table, known, input, tiles);
        let mut work = Slabs::new(table, known, scratch);
        for ((_, part), input) in table.compressed().zip(inputs) {
            let cut = Cut::of(table, part, known);
            for (first, rows) in cut.slabs() {
                let start = part.first + first * part.columns;
                let formed = &sums[start..start + rows * part.columns];
                work.add(&cut, first, rows, Rows::Formed(formed), input);
            }
        }
        // The pass before ended with the last slabs: a part of them is still in a cache.
        work.slabs.reverse();
        for_each(work.slabs, |slab| self.simd().multiply(slab));
        gather(table, known, scratch, sent);
    }

    /// Writes L R^T of each matrix, or NaN if it is poisoned.
    pub(crate) fn expand_low_rank(
        &self,
        table: &Table,
        left: &[f32],
        right: &[f32],
        poisoned: &[bool],
        output: &mut [f32],
        memory: &mut PassMemory,
    ) {
        let mut rights = rights(table, right, &mut memory.lines).into_iter().peekable();
        let mut tasks = Vec::new();
        let mut output = output;
        for (index, part) in table.parts.iter().enumerate() {
            let (mut mine, others) = std::mem::take(&mut output).split_at_mut(part.elements());
            output = others;
            let Some(right) = rights.next_if(|_| part.compressed) else { continue };
            for (first, rows) in Cut::of(table, part, Side::Right).slabs() {
                let (out, others) = std::mem::take(&mut mine).split_at_mut(rows * part.columns);
                mine = others;
                tasks.push((part, first, right, poisoned[index], out));
            }
        }
        for_each(tasks, |(part, first, right, poisoned, out)| {
            if poisoned {
                out.fill(f32::from_bits(NAN_BITS));
            } else {
                self.simd().expand(*part, table.rank, first, &left[part.left..], right, out);
            }
        });
    }

    /// The first element of gradient + residual that is not finite, while the residual is where a step finds it.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for factors.
    pub(crate) fn low_rank_not_finite(
        &self,
        matrices: &Matrices<'_>,
        gradient: Gradient<'_>,
    ) -> Result<Option<u64>, Error> {
        let table = matrices.table;
        let mut lines = each_matrix(table, lines_of)?;
        let rights = rights(table, matrices.right, &mut lines);
        let mut places = 0..;
        let place = |part: &Part| if part.compressed { places.next() } else { None };
        let rights_at: Vec<Option<usize>> = table.parts.iter().map(place).collect();
        let of_part = |(index, part): (usize, &Part)| {
            if part.elements() == 0 {
                return None;
            }
            let rank = if part.compressed { table.rank } else { 0 };
            // A tensor that is not compressed is a row of its own here.
            let part = if part.compressed { *part } else { Part { rows: 1, columns: part.elements(), ..*part } };
            let before = match Before::of(matrices.feedback, matrices.sent[index]) {
                Before::Rest if rank == 0 => Before::Nothing,
                before => before,
            };
            let left = if rank > 0 { &matrices.left[part.left..] } else { &[] };
            let right = rights_at[index].map_or(&[][..], |at| rights[at]);
            let places: Vec<_> = Cut { part: &part, rank, known: Side::Right }.slabs().collect();
            threads::items(places).find_map_first(|(first, rows)| {
                let start = part.first + first * part.columns;
                let sums = &matrices.sums[start..start + rows * part.columns];
                let gradient = gradient.part(start, sums.len());
                let rows = Rows::Form(Form { gradient, sums: &mut [], aside: None, before, left, right });
                let slab = Slab { part, rank, first, rows, input: &[], known: Side::Right, out: &mut [] };
                Some((start + self.simd().first_not_finite(slab, sums)?) as u64)
            })
        };
        Ok(threads::items(&table.parts).enumerate().find_map_first(of_part))
    }
}

/// Where in a buffer the first whole cache line begins. Only speed depends on it.
fn line_start(of: &[f32]) -> usize {
    of.as_ptr().align_offset(size_of::<Line>()).min(LANES)
}

/// Slabs to be multiplied, each with its own part of the scratch to write to.
struct Slabs<'a> {
    slabs: Vec<Slab<'a>>,
    room: &'a mut [f32],
}

impl<'a> Slabs<'a> {
    fn new(table: &Table, known: Side, scratch: &'a mut [f32]) -> Self {
        let needed = room(table, known);
        let start = line_start(scratch);
        Self { slabs: Vec::new(), room: &mut scratch[start..start + needed] }
    }

    fn add(&mut self, cut: &Cut<'_>, first: usize, rows: usize, of: Rows<'a>, input: &'a [f32]) {
        let Cut { part, rank, known } = *cut;
        let (out, room) = std::mem::take(&mut self.room).split_at_mut(cut.share(rows));
        self.room = room;
        self.slabs.push(Slab { part: *part, rank, first, rows: of, input, known, out });
    }
}

/// Entries of scratch that a product of all matrices needs: at most a quarter of their elements, and their right
/// factors once, all padded to sixteen columns; or the left factors once.
fn room(table: &Table, known: Side) -> usize {
    table.compressed().map(|(_, part)| Cut::of(table, part, known).shares()).sum()
}

/// Puts together what the slabs wrote: the rows of left factors, or sums of right factors in the order of the slabs.
/// What is NaN becomes the one NaN, since which bits a sum's has depends on the vectors' width.
fn gather(table: &Table, known: Side, scratch: &mut [f32], sent: &mut [f32]) {
    let rank = table.rank;
    let mut tasks = Vec::new();
    let start = line_start(scratch);
    let mut room = &mut scratch[start..];
    for ((_, part), out) in table.compressed().zip(table.split_mut(known.other(), sent)) {
        let cut = Cut::of(table, part, known);
        let (shares, others) = room.split_at_mut(cut.shares());
        room = others;
        tasks.push((part, shares, cut.share(cut.slab_rows().min(part.rows)), out));
    }
    for_each(tasks, |(part, shares, each, out)| match known {
        Side::Right => {
            for (k, column) in out.chunks_exact_mut(part.rows).enumerate() {
                column.iter_mut().zip(shares[k..].iter().step_by(rank)).for_each(|(to, from)| *to = canonical(*from));
            }
        }
        Side::Left => {
            // The first share becomes the sum of all.
            let (sums, shares) = shares.split_at_mut(each);
            let strips = sums.chunks_mut(STRIP).enumerate().collect();
            for_each(strips, |(at, sums)| add_in_order(sums, shares.get(at * STRIP..).unwrap_or_default(), each));
            let lines = sums.as_chunks::<LANES>().0;
            for (k, column) in out.chunks_exact_mut(part.columns).enumerate() {
                for (to, from) in column.chunks_mut(LANES).zip(lines[k..].iter().step_by(rank)) {
                    to.copy_from_slice(&from[..to.len()]);
                }
            }
        }
    });
}

/// Entries that are summed together, and shared out together.
const STRIP: usize = 1024;

/// Adds shares that lie `each` apart to the first, in f64 and in order.
fn add_in_order(first: &mut [f32], others: &[f32], each: usize) {
    let mut sums = [0.0f64; STRIP];
    for share in std::iter::once(&*first).chain(others.chunks(each)) {
        sums.iter_mut().zip(&share[..first.len().min(share.len())]).for_each(|(sum, v)| *sum += f64::from(*v));
    }
    first.iter_mut().zip(sums).for_each(|(out, sum)| *out = canonical(sum as f32));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::powersgd::{Matrix, PowerSgd};
    use crate::seed::Seed;

    #[test]
    fn scratch_is_a_quarter_of_the_gradient_and_the_right_factors() {
        let shapes = [
            (2, 2),
            (4096, 4096),
            (1000, 65_536),
            (999, 70_001),
            (129, 1 << 20),
            (64, 1 << 24),
            (1 << 20, 33),
            (11_008, 4096),
        ];
        for rank in [1usize, 3, 4, 8, 12, 32] {
            for (n, m) in shapes.into_iter().filter(|(n, m)| rank as u64 <= *n.min(m)) {
                // The table alone: a state of these would hold gigabytes.
                let part =
                    Part { rows: n as usize, columns: m as usize, compressed: true, first: 0, left: 0, right: 0 };
                let table = Table { rank, parts: vec![part], elements: (n * m) as usize, left: 0, right: 0 };
                let padded = (m as usize).next_multiple_of(LANES);
                let bound = n as usize * padded / 4 + padded * rank;
                let used = room(&table, Side::Left);
                assert!(used <= bound, "{n} x {m}, rank {rank}: {used} of {bound}");
                assert_eq!(room(&table, Side::Right), n as usize * rank);
            }
        }
        // And it is what a step takes, but for where a cache line begins.
        let mut state = PowerSgd::rank(8).state(&[Matrix::new(200, 70_000)], Seed::new(1)).expect("valid");
        let (gradient, mut output) = (vec![1.0f32; 14_000_000], vec![0.0; 14_000_000]);
        crate::Device::cpu()
            .low_rank_step(&mut state, &gradient, &mut output, |_| Ok::<_, crate::Error>(()))
            .expect("valid");
        assert_eq!(state.scratch.0.len(), room(&state.table, Side::Left) + LANES);
        assert!(state.scratch.0.len() < 14_000_000 / 4 + 8 * 70_144);
    }
}
