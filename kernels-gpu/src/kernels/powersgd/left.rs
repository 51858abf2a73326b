//! M Q: the left factors.

use super::order::{FACTOR, InStage, LEFT, Order, RIGHT, WIDTH, WIDTH_LOG2};
use super::{Buffers, FOUR, Form, NO_RIGHT, ROWS, Tile, elements, many, quads, stage};
use crate::device::{self, WARP};
use crate::params::{LOW_RANK_TILE, LOW_RANK_TOGETHER, LowRankParams, dtype, matrix};

/// Columns of a factor whose sums are in registers together.
const TOGETHER: usize = LOW_RANK_TOGETHER as usize;
/// Rows that are formed together: with all eight of a group a block takes more than half of the registers of a
/// multiprocessor, and no other one is there to wait for memory meanwhile.
const TOGETHER_ROWS: usize = 4;
/// Warps of a block.
const WARPS: u32 = 8;

kernel! {
    /// Forms gradient + residual of a tile, and multiplies it by the right factor.
    ///
    /// # What
    /// A tile's share of M Q: for each of its rows and each column of Q the sum over its columns. With `FORM`, M is
    /// formed first, from gradient, residual and L R^T, and left in `residual`; that takes a rank of 8 at most. Of a
    /// higher rank all columns are multiplied together on tensor cores (`tensor.rs`), or eight at a time where there
    /// are none (`eight.rs`).
    ///
    /// # Arguments
    /// * `p`; `input`, with `FORM`; `residual`: `p.bound` elements.
    /// * `workspace`: table, tiles, marks and factors are read, shares are written.
    /// * `status`: with `GUARDED`, read.
    /// * `output`, `values`: not used.
    ///
    /// # Thread mapping
    /// A block a tile; a warp four of its rows at a time, a lane four neighbouring columns of them, where rows begin at
    /// sectors (`quads.rs`), else one of 32 neighbouring columns, in the order of `order.rs`. On tensor cores a warp 32
    /// rows, as they are.
    ///
    /// # Shared memory
    /// 32 KiB: 256 entries of 8 columns of Q, L, R and the share; on tensor cores 64 of 32 columns of Q.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile from `p.first_tile` on.
    ///
    /// # Traffic
    /// An element once in each buffer, and r/64 words of Q, R, L and the share for it. Coalesced; where rows begin at
    /// no sector, a row of a tile is in one sector more than it must be, and one in four more on tensor cores. Without
    /// them an element above rank 8 is read for each eight columns.
    ///
    /// # Determinism
    /// Run to run on one device: every sum is in one order. That of eight products on a tensor core is the device's, so
    /// above rank 8 targets from sm_80 on, and GPUs of another architecture, have other bits.
    ///
    /// # Edge cases
    /// Rows and columns that are not there are zero. Where an element is not finite, so is its row's share.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_left(
        p: LowRankParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        status: *mut u32,
        output: *mut f32,
        values: *mut f32,
    ) {
        let b = Buffers { input, residual, workspace, status, output, values };
        // Each branch makes its own of the tile: what both used would take registers from the tensor cores' sums.
        // SAFETY: the tile is in the list, by the launch contract; all threads of the block take the same branch.
        unsafe {
            if p.rank <= LOW_RANK_TOGETHER {
                let tile = Tile::here(&p, &b);
                columns(&p, &b, &tile, Form::new(&p, &b, &tile.matrix), 0);
            } else {
                many::left(&p, &b, &Tile::here(&p, &b));
            }
        }
    }
}

/// The tile's share of eight columns, from `column` on.
///
/// # Safety
/// All threads of the block arrive together. The tile is there.
#[inline(always)]
pub(super) unsafe fn columns(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form, column: u32) {
    let (matrix, order) = (tile.matrix, Order::new(tile));
    // SAFETY: all threads are here; between the barriers the stage is only written, and each word by one thread.
    unsafe {
        let (tall, wide) = ((tile.row, WIDTH_LOG2), (tile.column, WIDTH_LOG2));
        let right = (p.factor + matrix.right, matrix.column_stride());
        stage(p, b, right, (column, LOW_RANK_TOGETHER), wide, (FACTOR, 0.0), |i| i);
        if form.rest {
            let right = (p.right + matrix.right, matrix.column_stride());
            stage(p, b, right, (0, LOW_RANK_TOGETHER), wide, (RIGHT, NO_RIGHT), |i| i);
            let left = (p.left + matrix.left, matrix.row_stride());
            stage(p, b, left, (0, LOW_RANK_TOGETHER), tall, (LEFT, 0.0), |i| order.place(i));
        }
        device::barrier();
    }
    let in_squares = form.form && quads::fit(b, tile);
    if in_squares {
        // SAFETY: the rows are this warp's; the stage holds what it should.
        unsafe {
            if p.dtype == dtype::F32 {
                squares::<quads::Single>(p, b, tile, form);
            } else {
                squares::<quads::Halves>(p, b, tile, form);
            }
        }
    }
    // Read again, here and below, so that it takes no registers meanwhile.
    // SAFETY: as before.
    let tile = unsafe { &Tile::here(p, b) };
    let order = Order::new(tile);
    let (mut group, groups) = (device::thread() / WARP, order.groups(tile));
    if in_squares {
        group += tile.rows() / ROWS as u32;
    }
    while group < groups {
        // SAFETY: the group is the warp's; the stage holds what it should.
        unsafe { rows(p, b, tile, form, (order, group), column) };
        group += WARPS;
    }
    // SAFETY: all threads are here; what the bins hold was written before the barrier, and the share is there.
    unsafe {
        device::barrier();
        let tile = Tile::here(p, b);
        write(p, b, &tile, Order::new(&tile), column);
    }
}

/// The share of the groups of which all eight rows are there, four rows at a time, which goes into the bins.
///
/// # Safety
/// All lanes arrive together. The stage is filled, the tile fits.
#[inline(always)]
unsafe fn squares<R: quads::Read>(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form) {
    let mut row = device::thread() / WARP * FOUR as u32;
    while row < tile.rows() / ROWS as u32 * ROWS as u32 {
        // SAFETY: all lanes are here; the rows and their bins are this warp's.
        unsafe {
            store(row, over_lanes(quads::left::<R>(p, b, tile, form, row)));
        }
        row += WARPS * FOUR as u32;
    }
}

/// Eight rows' share, which goes into the bins.
///
/// # Safety
/// All lanes arrive together. The stage is filled, the rows and their bins are this warp's.
#[inline(always)]
unsafe fn rows(p: &LowRankParams, b: &Buffers, tile: &Tile, form: Form, (order, index): (Order, u32), column: u32) {
    let lane = device::thread() % WARP;
    let group = order.group(tile, index);
    if group.rows == 0 {
        return;
    }
    let (mut before, all) = (0, device::opaque(ROWS as u32));
    while before < all {
        let mut sums = [0.0f32; TOGETHER * TOGETHER_ROWS];
        let (mut strip, behind) = (0, group.columns(tile));
        while strip < behind {
            let here = group.column(strip + lane);
            let less = InStage { rank: p.rank, place: index * ROWS as u32 + before, column: here };
            let mut m = [0.0; TOGETHER_ROWS];
            let at = group.at(tile, here) + before * group.stride;
            let at = (at, group.stride, group.rows.saturating_sub(before));
            // SAFETY: an element that is there is bound, and this lane's.
            unsafe {
                if group.rows >= ROWS as u32 && tile.columns() == WIDTH {
                    m = elements::<true, TOGETHER_ROWS>(p, b, form, at, &less);
                } else if here < tile.columns() {
                    m = elements::<false, TOGETHER_ROWS>(p, b, form, at, &less);
                }
            }
            for four in 0..TOGETHER / FOUR {
                if column + (four * FOUR) as u32 >= p.rank {
                    continue;
                }
                for k in four * FOUR..(four + 1) * FOUR {
                    // SAFETY: the stage holds eight columns of Q.
                    let q = unsafe { device::stage_load(FACTOR + k as u32 * WIDTH + here) };
                    for j in 0..TOGETHER_ROWS {
                        let sum = k * TOGETHER_ROWS + j;
                        sums[sum] = device::fma(m[j], q, sums[sum]);
                    }
                }
            }
            strip += WARP;
        }
        // SAFETY: all lanes are here; the bins are the group's.
        unsafe { store(index * ROWS as u32 + before, over_lanes(sums)) };
        before += TOGETHER_ROWS as u32;
    }
}

/// Puts the sums of four rows, at a place, into their bins: what lane `i` has is of row `i % 4` and column `i / 4`.
///
/// # Safety
/// The bins are this warp's.
#[inline(always)]
unsafe fn store(place: u32, sum: f32) {
    let lane = device::thread() % WARP;
    // SAFETY: the caller's.
    unsafe { device::bin_store(bin(lane / FOUR as u32, place + lane % FOUR as u32), sum.to_bits()) };
}

/// The bin of the row at a place, of a column of the share: columns begin at other banks.
#[inline(always)]
fn bin(k: u32, place: u32) -> u32 {
    k * LOW_RANK_TILE + (place + 4 * k) % LOW_RANK_TILE
}

/// Writes the share, of eight columns of the factor from `column` on.
///
/// # Safety
/// All rows of the tile are in the bins, and nothing writes to them. The share is there.
#[inline(always)]
unsafe fn write(p: &LowRankParams, b: &Buffers, tile: &Tile, order: Order, column: u32) {
    let (row, stride) = (device::thread(), tile.matrix.row_stride());
    if row >= tile.rows() {
        return;
    }
    // SAFETY: the caller ensures that the share is there, and that nothing writes to the bins.
    unsafe {
        let shares = *b.word(tile.matrix.index * matrix::WORDS + matrix::SHARES);
        let at = p.shares + shares + ((tile.column >> WIDTH_LOG2) * p.rank + column) * stride + tile.row + row;
        let place = order.place(row);
        for k in 0..LOW_RANK_TOGETHER {
            if column + k < p.rank {
                *b.word(at + k * stride) = device::bin_load(bin(k, place));
            }
        }
    }
}

/// The sums over the lanes: in lane `i`, that of the value `i`.
///
/// In each step a lane keeps half of its values and gives the other half away, so that 31 exchanges do for 32 values.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn over_lanes(mut values: [f32; TOGETHER * TOGETHER_ROWS]) -> f32 {
    let lane = device::thread() % WARP;
    for step in 0..5 {
        let (mask, half) = (16u32 >> step, 16usize >> step);
        let upper = lane & mask != 0;
        for i in 0..half {
            let (keep, give) = if upper { (values[i + half], values[i]) } else { (values[i], values[i + half]) };
            // SAFETY: the caller brings all lanes here.
            let other = unsafe { f32::from_bits(device::shuffle_xor(give.to_bits(), mask)) };
            values[i] = keep + other;
        }
    }
    values[0]
}

const _: () = assert!((TOGETHER * TOGETHER_ROWS) as u32 == WARP && TOGETHER as u32 * LOW_RANK_TILE == device::BINS);
