//! What PowerSGD keeps from step to step, owned by the caller.

use std::sync::Arc;

use gradwire_kernels::arith::powersgd::term;

use super::{Part, Side, Table};
use crate::codec::powersgd::PowerSgd;
use crate::error::Error;
use crate::seed::Seed;

/// The residuals and warm-started factors of PowerSGD, for the tensors of a model.
///
/// Made by [`PowerSgd::state`]; each worker keeps one. The residual is kept as M and the factors, and M - L R^T is formed when
/// the next step reads it anyway: that saves writing it.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankState {
    pub(crate) codec: PowerSgd,
    pub(crate) table: Arc<Table>,
    pub(crate) seed: Seed,
    /// Steps that were finished.
    pub(crate) step: u64,
    /// Which factor the last step computed last: the next step starts from it.
    pub(crate) last: Side,
    /// Gradient + residual of the last step.
    pub(crate) sums: Vec<f32>,
    pub(crate) left: Vec<f32>,
    pub(crate) right: Vec<f32>,
    /// Of each tensor, whether L R^T, or the tensor itself, was sent and is yet to be taken off `sums`.
    pub(crate) sent: Vec<bool>,
    /// Of each tensor, whether a factor of the step under way was not finite.
    pub(crate) poisoned: Vec<bool>,
    /// Factors that the step under way has given out; 0 between steps.
    pub(crate) round: u32,
    /// Room for the passes, kept because new room costs as much as they do.
    pub(crate) scratch: Scratch,
}

/// Room that holds nothing from call to call.
#[derive(Debug, Default)]
pub(crate) struct Scratch(pub(crate) Vec<f32>);

impl Clone for Scratch {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Scratch {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl LowRankState {
    pub(crate) fn new(codec: PowerSgd, table: Arc<Table>, seed: Seed) -> Self {
        let tensors = table.parts.len();
        Self {
            codec,
            seed,
            step: 0,
            last: Side::Right,
            sums: vec![0.0; table.elements],
            // Zeros are dependent columns, which a step replaces by seeded ones.
            left: vec![0.0; table.left],
            right: vec![0.0; table.right],
            sent: vec![false; tensors],
            poisoned: vec![false; tensors],
            round: 0,
            scratch: Scratch::default(),
            table,
        }
    }

    /// Elements of the gradient: those of all tensors.
    pub fn elements(&self) -> usize {
        self.table.elements
    }

    /// Steps that were finished.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Factors that a step hands out, one after another, to be all-reduced: 2 for each power iteration, or 1 where one-sided.
    pub fn rounds(&self) -> u32 {
        self.codec.rounds()
    }

    /// Whether a tensor is sent as factors; `None` where there is no such tensor.
    pub fn is_compressed(&self, tensor: usize) -> Option<bool> {
        self.table.parts.get(tensor).map(|part| part.compressed)
    }

    /// Entries of the factor that is handed out next: r for each row of every compressed matrix, or for each column; the
    /// last of a step has the tensors that are not compressed behind it.
    pub fn factor_len(&self) -> usize {
        self.sent_len(self.side(self.round + 1), self.round + 1)
    }

    /// Bytes that the step under way sends, or the next where none is: 4 r (n + m) for a matrix and an iteration.
    pub fn step_bytes(&self) -> usize {
        (1..=self.rounds()).map(|round| 4 * self.sent_len(self.side(round), round)).sum()
    }

    /// Which factor a round of a step hands out.
    pub(crate) fn side(&self, round: u32) -> Side {
        if round % 2 == 1 { self.last.other() } else { self.last }
    }

    /// Entries that a round of a step hands out.
    pub(crate) fn sent_len(&self, side: Side, round: u32) -> usize {
        self.table.factor_len(side) + if round == self.rounds() { self.table.plain_len() } else { 0 }
    }

    pub(crate) fn factors(&mut self, side: Side) -> &mut Vec<f32> {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    /// The factors L and R of a matrix in the last step's output L R^T, column by column: n entries for each of r columns, and m
    /// for each. The one that was computed first is orthonormal, but for columns of zeros. `None` for a tensor that is not compressed.
    pub fn factors_of(&self, tensor: usize) -> Option<[Vec<f32>; 2]> {
        let part = self.table.parts.get(tensor).filter(|part| part.compressed)?;
        let of = |side: Side, factors: &[f32]| {
            let columns = factors[part.start(side)..].chunks_exact(part.stride(side)).take(self.table.rank);
            columns.flat_map(|column| &column[..part.dimension(side)]).copied().collect()
        };
        Some([of(Side::Left, &self.left), of(Side::Right, &self.right)])
    }

    /// The residual: what was not sent so far, an entry for each element of the gradient.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way.
    pub fn residual(&self) -> Result<Vec<f32>, Error> {
        self.expect_idle("residual")?;
        if !self.codec.feedback() {
            return Ok(vec![0.0; self.sums.len()]);
        }
        let mut residual = self.sums.clone();
        for (part, sent) in self.table.parts.iter().zip(&self.sent) {
            let mine = &mut residual[part.first..part.first + part.elements()];
            match (sent, part.compressed) {
                (false, _) => {}
                (true, false) => mine.fill(0.0),
                (true, true) => self.take_off(part, mine),
            }
        }
        Ok(residual)
    }

    /// Takes L R^T off the elements of a matrix.
    fn take_off(&self, part: &Part, elements: &mut [f32]) {
        let (left, right) = (&self.left[part.left..], &self.right[part.right..]);
        for (i, row) in elements.chunks_exact_mut(part.columns).enumerate() {
            for (j, element) in row.iter_mut().enumerate() {
                let mut sum = left[i] * right[j];
                for k in 1..self.table.rank {
                    sum = term(sum, left[k * part.row_stride() + i], right[k * part.column_stride() + j]);
                }
                *element -= sum;
            }
        }
    }

    /// Forgets the residual, and keeps the factors.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way.
    pub fn clear_residual(&mut self) -> Result<(), Error> {
        self.expect_idle("clear_residual")?;
        self.sums.fill(0.0);
        self.sent.fill(false);
        Ok(())
    }

    /// Takes over the residual of a worker that leaves: the sum of all workers' residuals stays what it was, but for the
    /// rounding of the additions.
    ///
    /// ```
    /// use gradwire::{Device, Matrix, PowerSgd, Seed};
    /// let device = Device::cpu();
    /// let mut stays = PowerSgd::rank(1).state(&[Matrix::new(16, 16)], Seed::new(1))?;
    /// let mut leaves = stays.clone();
    /// let mut output = [0.0; 256];
    /// device.low_rank_step(&mut stays, &[1.0f32; 256], &mut output, |_| {})?;
    /// device.low_rank_step(&mut leaves, &(0..256).map(|i| (i % 7) as f32).collect::<Vec<_>>(), &mut output, |_| {})?;
    /// let before = [stays.residual()?, leaves.residual()?];
    /// stays.absorb(&leaves)?;
    /// assert!(stays.residual()?.iter().enumerate().all(|(i, e)| *e == before[0][i] + before[1][i]));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where the other state is for other tensors or another rank; [`Error::Order`] while a step of either is
    /// under way. The residual is then as it was.
    pub fn absorb(&mut self, leaving: &Self) -> Result<(), Error> {
        self.table.expect_same(&leaving.table)?;
        let (mine, theirs) = (self.residual()?, leaving.residual()?);
        self.sums = mine.iter().zip(theirs).map(|(mine, theirs)| mine + theirs).collect();
        self.sent.fill(false);
        Ok(())
    }

    /// The state of a worker that joins: the same factors and step, and no residual.
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way.
    pub fn joining(&self) -> Result<Self, Error> {
        self.expect_idle("joining")?;
        let mut state = self.clone();
        state.clear_residual()?;
        Ok(state)
    }

    /// Gives up a step that was begun, as where a collective failed: nothing was sent, and with feedback the finite part of
    /// the gradient stays in the residual. Does nothing between steps.
    pub fn abandon(&mut self) {
        if self.round == 0 {
            return;
        }
        self.round = 0;
        for part in self.table.parts.iter().filter(|part| !part.compressed) {
            let mine = &mut self.sums[part.first..part.first + part.elements()];
            mine.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = 0.0);
        }
    }

    pub(crate) fn expect_idle(&self, asked: &'static str) -> Result<(), Error> {
        if self.round == 0 { Ok(()) } else { Err(Error::Order { asked, expected: self.expected() }) }
    }

    /// Which call is next.
    pub(crate) fn expected(&self) -> &'static str {
        match self.round {
            0 => "begin_low_rank",
            round if round < self.rounds() => "advance_low_rank",
            _ => "finish_low_rank",
        }
    }
}

impl Table {
    /// Checks that a state for `found` serves these tensors.
    pub(crate) fn expect_same(&self, found: &Self) -> Result<(), Error> {
        let differ = |what, tensor, found: usize, expected: usize| {
            if found == expected {
                return Ok(());
            }
            Err(Error::Shape { what, tensor, found: found as u64, expected: expected as u64 })
        };
        differ("rank", None, found.rank, self.rank)?;
        differ("number of tensors", None, found.parts.len(), self.parts.len())?;
        for (index, (found, expected)) in found.parts.iter().zip(&self.parts).enumerate() {
            let tensor = Some(index as u64);
            differ("number of rows", tensor, found.rows, expected.rows)?;
            differ("number of columns", tensor, found.columns, expected.columns)?;
            differ(
                "number of factors",
                tensor,
                2 * usize::from(found.compressed),
                2 * usize::from(expected.compressed),
            )?;
        }
        Ok(())
    }
}
