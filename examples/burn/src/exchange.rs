//! What stands between `backward` and the optimizer's step: gradients of several workers in, their mean out.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use gradwire::{Device, Error, Payload, Qsgd, Seed};

/// The exchange of gradients between workers, with what it keeps from step to step.
pub struct Exchange {
    device: Device,
    codec: Qsgd,
    run: u64,
    step: u64,
    /// A residual for each parameter of each worker.
    residuals: HashMap<(usize, ParamId), Vec<f32>>,
    /// Bytes that a worker sent in the last step.
    pub sent: usize,
}

impl Exchange {
    /// An exchange by a codec that contracts, since it feeds its errors back.
    pub fn new(device: Device, codec: Qsgd, run: u64) -> Self {
        Self { device, codec, run, step: 0, residuals: HashMap::new(), sent: 0 }
    }

    /// The mean of the workers' gradients, of which only payloads travelled.
    ///
    /// # Errors
    /// What Gradwire refuses, such as a codec that does not contract.
    pub fn mean<M: Module>(&mut self, model: &M, workers: Vec<GradientsParams>) -> Result<GradientsParams, Error> {
        self.sent = 0;
        let mut visitor = Visitor { exchange: self, workers, mean: GradientsParams::new(), tensor: 0, result: Ok(()) };
        model.visit(&mut visitor);
        let Visitor { mean, result, .. } = visitor;
        self.step += 1;
        result.map(|()| mean)
    }

    /// What a worker sends of one gradient.
    fn encode(&mut self, worker: usize, id: ParamId, tensor: u32, gradient: &[f32]) -> Result<Payload, Error> {
        let residual = self.residuals.entry((worker, id)).or_insert_with(|| vec![0.0; gradient.len()]);
        // Workers draw apart, so that their errors average out.
        let seed = Seed::new(self.run).step(self.step).tensor(tensor).worker(worker as u32);
        self.device.encode_with_feedback(&self.codec, gradient, residual, seed)
    }
}

/// Goes through a model's parameters.
struct Visitor<'e> {
    exchange: &'e mut Exchange,
    workers: Vec<GradientsParams>,
    mean: GradientsParams,
    tensor: u32,
    result: Result<(), Error>,
}

impl Visitor<'_> {
    fn exchange<const D: usize>(&mut self, id: ParamId) -> Result<(), Error> {
        let (mut payloads, mut like) = (Vec::new(), None);
        for (worker, gradients) in self.workers.iter_mut().enumerate() {
            let Some(gradient) = gradients.remove::<D>(id) else { continue };
            like = Some((gradient.dims(), gradient.device()));
            let values: Vec<f32> = gradient.into_data().iter::<f32>().collect();
            payloads.push(self.exchange.encode(worker, id, self.tensor, &values)?);
        }
        // A parameter that took no part in the loss has no gradient.
        let (Some((shape, device)), Some(first)) = (like, payloads.first()) else { return Ok(()) };
        self.exchange.sent += first.as_bytes().len();
        // The all-gather of a real run; each payload is read as bytes that came from elsewhere.
        let payloads = payloads.iter().map(|payload| Payload::from_bytes(payload.as_bytes()));
        let payloads = payloads.collect::<Result<Vec<_>, _>>()?;
        let mut mean = vec![0.0; payloads[0].len()];
        self.exchange.device.decode_sum(&payloads, 1.0 / self.workers.len() as f32, &mut mean)?;
        self.mean.register(id, Tensor::<D>::from_data(TensorData::new(mean, shape), &device));
        self.tensor += 1;
        Ok(())
    }
}

impl ModuleVisitor for Visitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.result.is_ok() {
            self.result = self.exchange::<D>(param.id);
        }
    }
}
