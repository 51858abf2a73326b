//! Work on memory of the host's without a wait, for where a thread may not wait: a browser's.

use super::device::Wgpu;
use super::staging::{Copied, SCRATCH};
use crate::embed::{HostSlice, Piece, Work, Written, expect_found, sealed};
use crate::error::Error;
use crate::plan::Pass;
use crate::words::from_little_endian;

impl Wgpu {
    /// Runs work on memory of the host's, without a wait in a browser: the pieces go to the device, the work is done,
    /// and what it has written comes back.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::{HostSlice, Wgpu};
    /// use gradwire::embed::{Select, SelectBuffers};
    /// use gradwire::{Dtype, Gradient, TopK};
    /// let gradwire = Wgpu::open_async().await?;
    /// let selection = TopK::count(100).selection(gradient.len(), Dtype::F32, false, &gradwire.limits())?;
    /// let (mut indices, mut values) = ([0u8; 400], [0u8; 400]);
    /// let buffers = SelectBuffers {
    ///     gradient: Gradient::F32(gradient).into(),
    ///     residual: None,
    ///     indices: HostSlice::Out(&mut indices),
    ///     values: HostSlice::Out(&mut values),
    ///     workspace: HostSlice::In(&selection.table()),
    /// };
    /// gradwire.run_async(Select(&selection), buffers).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of the work; [`Error::Length`] for a slice that is too short or too long; [`Error::Memory`] for a piece
    /// that is written and was handed over to be read, or the other way round; [`Error::NotFinite`] under that policy;
    /// [`Error::Backend`]. The host's memory is as it was whenever this fails, and where the future is dropped.
    pub async fn run_async<W: Work>(&self, work: W, buffers: W::Buffers<HostSlice<'_>>) -> Result<(), Error> {
        let submitted = self.contained("working", || self.submitted(&work, buffers)).await?;
        let Some(Submitted { passes, answers, copies, grown }) = submitted else {
            work.queued(sealed::Surface(()));
            return Ok(());
        };
        let mut said = Vec::with_capacity(answers.len());
        for answer in answers {
            said.push(self.read(answer).await?);
        }
        let found = work.judge(&passes, &said)?;
        let mut results = Vec::with_capacity(grown.len());
        for (room, needed, all) in grown {
            expect_found(found, needed)?;
            let copied = self.contained("copying results", || self.copied_alone(&room, 4 * found)).await?;
            results.push((all, from_little_endian(&self.read(copied).await?)));
        }
        let mut answers = Vec::with_capacity(copies.len());
        for (to, copied) in copies {
            answers.push((to, self.read(copied).await?));
        }
        for (parts, bytes) in answers {
            let first = parts.first().map_or(0, |(at, _)| *at);
            parts.into_iter().for_each(|(at, to)| to.copy_from_slice(&bytes[(at - first) as usize..][..to.len()]));
        }
        results.into_iter().for_each(|(all, words)| *all = words);
        work.queued(sealed::Surface(()));
        Ok(())
    }

    /// Submits work with the copies of what it writes; none if there is nothing to do.
    fn submitted<'h, W: Work>(
        &self,
        work: &W,
        buffers: W::Buffers<HostSlice<'h>>,
    ) -> Result<Option<Submitted<'h>>, Error> {
        let passes = work.passes(&self.limits())?;
        let pieces: Vec<_> = work.pieces(buffers)?.into_iter().filter(|piece| piece.needed > 0).collect();
        pieces.iter().try_for_each(Piece::check)?;
        if passes.is_empty() {
            return Ok(None);
        }
        let rooms = pieces.iter().map(|piece| self.uploaded(piece)).collect::<Result<Vec<_>, _>>()?;
        let mut encoder = self.encoder();
        let mut slices = Vec::with_capacity(pieces.len());
        let (mut written, mut grown) = (Vec::with_capacity(pieces.len()), Vec::new());
        for (piece, room) in pieces.into_iter().zip(&rooms) {
            let needed = piece.needed;
            slices.push(piece.map(|host| {
                let (parts, all) = host.written();
                written.push((parts, room));
                grown.extend(all.map(|all| (room.clone(), needed, all)));
                room.slice(..)
            }));
        }
        self.record_checked(&passes, &mut encoder, &slices)?;
        let mut answers = Vec::new();
        for (role, range) in work.asks(&passes) {
            let of = |piece: &Piece<wgpu::BufferSlice<'_>>| {
                let (_, from) = piece.roles.into_iter().flatten().find(|(of, _)| *of == role)?;
                Some((piece.buffer.buffer().clone(), from + range.start))
            };
            let Some((room, at)) = slices.iter().find_map(of) else { continue };
            answers.push(self.copied(&mut encoder, &room, at, range.end - range.start)?);
        }
        let mut copies = Vec::with_capacity(written.len());
        for (to, room) in written {
            let Some(first) = to.first().map(|(at, _)| *at) else { continue };
            let end = to.last().map_or(first, |(at, bytes)| at + bytes.len() as u64);
            copies.push((to, self.copied(&mut encoder, room, first, end - first)?));
        }
        self.submit(encoder);
        Ok(Some(Submitted { passes: passes.into_owned(), answers, copies, grown }))
    }

    /// Submits a copy of the first bytes of a buffer.
    fn copied_alone(&self, room: &wgpu::Buffer, bytes: u64) -> Result<Copied, Error> {
        let mut encoder = self.encoder();
        let copied = self.copied(&mut encoder, room, 0, bytes)?;
        self.submit(encoder);
        Ok(copied)
    }

    /// A buffer for a piece, with what the host hands over.
    fn uploaded(&self, piece: &Piece<HostSlice<'_>>) -> Result<wgpu::Buffer, Error> {
        let room = self.room(piece.needed, SCRATCH)?;
        for (at, bytes) in piece.buffer.read() {
            // More than the work needs may be handed over.
            self.put_at(&room, at, &bytes[..bytes.len().min((piece.needed - at) as usize)]);
        }
        Ok(room)
    }
}

/// Work that was submitted.
struct Submitted<'h> {
    passes: Vec<Pass>,
    /// What says how it ended.
    answers: Vec<Copied>,
    /// What it has written, on its way to memory of the host's.
    copies: Vec<(Written<'h>, Copied)>,
    /// Results whose number is in the answers, and where they go.
    grown: Vec<(wgpu::Buffer, u64, &'h mut Vec<u32>)>,
}
