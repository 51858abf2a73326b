//! The seed draws the entries that are sent, from the concatenated tensors.

use crate::collective::Collective;
use crate::compressor::failure::{Failure, expect_finite};
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::mean;
use crate::compressor::method::contract::{Method, Summed};
use crate::compressor::planes::Held;
use crate::compressor::stamp::Stamp;
use crate::error::Error;
use crate::plan::NonFinite;
use crate::random::RandomK;
use crate::view::are_finite;

/// The seed draws the entries that are sent, from the concatenated tensors.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(super) RandomK);

impl Random {
    pub(crate) fn new(group: &Group, codec: RandomK) -> Result<Self, Error> {
        codec.entries(group.elements() as u64)?;
        Ok(Self(codec))
    }
}

impl Method for Random {
    fn payload_bytes(&self, _: &Group) -> Result<Option<Vec<u64>>, Error> {
        Ok(Some(Vec::new()))
    }
}

impl Summed for Random {
    fn refuse(&mut self, group: &Group, input: &[f32]) -> Result<(), Error> {
        match group.recipe.non_finite {
            NonFinite::Error => group.refuse_not_finite(input),
            NonFinite::Propagate => Ok(()),
        }
    }

    fn exchange(
        &mut self,
        group: &Group,
        host: &mut Host<'_>,
        stamp: Stamp,
        ranks: &mut dyn Collective,
        _: f32,
    ) -> Result<u64, Failure> {
        let (device, seed, mut packed) = (host.device, stamp.seed, group.pack(host.gradient)?);
        let (mut values, finite) = if group.recipe.memory().feedback {
            let residual = host.planes.of(Held::Residual);
            let (values, left, finite) = device.take_random(&self.0, &packed, &group.pack(residual.before)?, seed)?;
            group.unpack(&left, residual.behind);
            (values, finite)
        } else {
            (device.encode_random(&self.0, &packed, seed)?, are_finite(bytemuck::cast_slice(&packed)))
        };
        if !finite {
            // An entry that is not drawn would stay hidden from the other ranks.
            values.fill(f32::NAN);
        }
        let weight = mean::all_reduce(ranks, &mut values).map_err(Error::from)?;
        expect_finite(&values, group.recipe.non_finite).map_err(Error::from)?;
        packed.fill(0.0);
        device.decode_random_add(&self.0, &values, weight, &mut packed, seed).map_err(Failure::behind)?;
        group.unpack(&packed, host.gradient);
        Ok(4 * values.len() as u64)
    }
}
