//! Which gradient is compressed: the shipped one, a file, or a synthetic one.

use std::collections::BTreeMap;
use std::path::Path;

use gradwire::{Dtype, Gradient, Matrix};
use gradwire_tests::cases::Random;
use gradwire_tests::data::{self, Tensor, Tensors, shown};
use half::{bf16, f16};

use super::size::grouped;
use crate::jobs::list::matrix;

/// A gradient, tensor by tensor, with every value one that its type holds.
pub(crate) struct Source {
    /// What it is, in a few words.
    pub(crate) label: String,
    pub(crate) tensors: Vec<Tensor>,
    /// Why tensors of the file are not among them.
    pub(crate) left_out: Vec<String>,
    pub(crate) dtype: Dtype,
    /// Whether it is one tensor that was made for this run, and is timed as it is.
    pub(crate) synthetic: bool,
}

/// The gradient that the arguments ask for; without a type, in that of the file's tensors, or f32 if they have
/// several.
pub(crate) fn load(
    input: Option<&Path>,
    size: Option<usize>,
    dtype: impl Into<Option<Dtype>>,
) -> Result<Source, String> {
    let (name, Tensors { tensors, left_out }) = match (input, size) {
        (Some(path), _) => (shown(&path.display().to_string()), read(path)?),
        (None, Some(n)) => {
            let (name, shape, stored) = ("synthetic".to_owned(), vec![n], Dtype::F32);
            let tensor = Tensor { name, shape, stored, values: synthetic(n) };
            let what = "synthetic values with heavy tails (Student's t, 4 degrees of freedom)";
            (what.to_owned(), Tensors { tensors: vec![tensor], left_out: Vec::new() })
        }
        (None, None) => ("real gradients, benches/data/digits_cnn.safetensors".to_owned(), data::read(data::DIGITS)?),
    };
    let mut stored: Vec<Dtype> = Vec::new();
    for tensor in &tensors {
        if !stored.contains(&tensor.stored) {
            stored.push(tensor.stored);
        }
    }
    let own = if let [one] = stored[..] { one } else { Dtype::F32 };
    let dtype = dtype.into().unwrap_or(own);
    let synthetic = input.is_none() && size.is_some();
    let mut source = Source { label: String::new(), tensors, left_out, dtype, synthetic };
    for tensor in &mut source.tensors {
        round(&mut tensor.values, dtype);
        if let Some(at) = tensor.values.iter().position(|v| !v.is_finite()) {
            return Err(format!(
                "element {at} of tensor {} is {} as {}, and an error relative to it would mean nothing; capture a step \
                 whose gradients are finite{}",
                tensor.name,
                tensor.values[at],
                dtype.name(),
                if dtype == Dtype::F16 { ", or use --dtype bf16" } else { "" }
            ));
        }
    }
    let count = source.tensors.len();
    let tensors = if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") };
    let types = match &stored[..] {
        [one] if *one == dtype => dtype.name().to_owned(),
        // Values that were made for this run were never anything else.
        _ if input.is_none() => dtype.name().to_owned(),
        all => {
            let names: Vec<&str> = all.iter().map(|stored| stored.name()).collect();
            format!("{} in the file, encoded as {}", names.join(" and "), dtype.name())
        }
    };
    source.label = format!("{name}: {tensors}, {} elements, {types}", grouped(source.elements()));
    if source.elements() == 0 {
        return Err(format!("{name} holds {tensors} and no element; give --input a file with gradients"));
    }
    Ok(source)
}

fn read(path: &Path) -> Result<Tensors, String> {
    let what = "give --input a safetensors file of f32, f16 or bf16 gradients";
    let name = shown(&path.display().to_string());
    let bytes = std::fs::read(path).map_err(|e| format!("{name} could not be read: {e}; {what}"))?;
    data::read(&bytes).map_err(|e| format!("{name}: {e}; {what}"))
}

impl Source {
    /// Elements of all tensors.
    pub(crate) fn elements(&self) -> usize {
        self.tensors.iter().map(|t| t.values.len()).sum()
    }

    /// A source for each step that was captured, where the tensors are named `step.tensor`, the same for each; else
    /// this one.
    pub(crate) fn steps(&self) -> Vec<Self> {
        let of =
            |step: &str, tensors: Vec<Tensor>| Self { label: step.to_owned(), tensors, left_out: Vec::new(), ..*self };
        let mut parts: BTreeMap<&str, Vec<(&str, &Tensor)>> = BTreeMap::new();
        for tensor in &self.tensors {
            let Some((step, name)) = tensor.name.split_once('.') else { return vec![of("all", self.tensors.clone())] };
            parts.entry(step).or_default().push((name, tensor));
        }
        let shapes = |part: &[(&str, &Tensor)]| -> Vec<_> {
            part.iter().map(|(name, tensor)| (name.to_string(), tensor.shape.clone())).collect()
        };
        // Compared before anything is copied: a model may have a part for each of thousands of layers.
        let mut all = parts.values().map(|part| shapes(part));
        let first = all.next();
        if all.any(|other| Some(other) != first) {
            return vec![of("all", self.tensors.clone())];
        }
        let renamed = |(name, tensor): (&str, &Tensor)| Tensor { name: name.to_owned(), ..tensor.clone() };
        let step = |(step, part): (&str, Vec<(&str, &Tensor)>)| of(step, part.into_iter().map(renamed).collect());
        let mut steps: Vec<Self> = parts.into_iter().map(step).collect();
        // Those that ship, in the order of training; others stay in the order of their names.
        steps.sort_by_key(|step| ["early", "middle", "late"].iter().position(|name| *name == step.label));
        steps
    }

    /// The tensors as PowerSGD takes them, each a matrix by its shape.
    pub(crate) fn shapes(&self) -> Vec<Matrix> {
        let shape = |t: &Tensor| Matrix::of(&t.shape.iter().map(|d| *d as u64).collect::<Vec<_>>());
        self.tensors.iter().map(shape).collect()
    }

    /// As [`Self::shapes`]; of a tensor that was made for this run, the matrix that is timed.
    pub(crate) fn matrices(&self) -> Vec<Matrix> {
        if self.synthetic { vec![matrix(self.elements())] } else { self.shapes() }
    }

    /// The values of all tensors, one after another, repeated until there are `n`.
    pub(crate) fn repeated(&self, n: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(n);
        let all = self.tensors.iter().cycle();
        for tensor in all {
            let left = n - values.len();
            values.extend_from_slice(&tensor.values[..tensor.values.len().min(left)]);
            if values.len() == n {
                break;
            }
        }
        values
    }
}

/// Values in the type that is encoded.
pub(crate) enum Typed<'a> {
    F32(&'a [f32]),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl<'a> Typed<'a> {
    /// These values in this type.
    pub(crate) fn new(values: &'a [f32], dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(values),
            Dtype::F16 => Self::F16(values.iter().map(|v| f16::from_f32(*v)).collect()),
            Dtype::Bf16 => Self::Bf16(values.iter().map(|v| bf16::from_f32(*v)).collect()),
        }
    }

    /// The values, to encode.
    pub(crate) fn gradient(&self) -> Gradient<'_> {
        match self {
            Self::F32(x) => Gradient::F32(x),
            Self::F16(x) => Gradient::F16(x),
            Self::Bf16(x) => Gradient::Bf16(x),
        }
    }
}

/// Rounds values to what the type holds, so that the error measured later is the codec's alone.
fn round(values: &mut [f32], dtype: Dtype) {
    match dtype {
        Dtype::F32 => {}
        Dtype::F16 => values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
        Dtype::Bf16 => values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
    }
}

/// Elements that one seed of the synthetic gradient gives, so that the values do not depend on the threads.
const BLOCK: usize = 1 << 16;

/// Values with the heavy tails of gradients: a normal variable over the root of a chi-squared one.
pub(crate) fn synthetic(n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = n.div_ceil(threads).next_multiple_of(BLOCK);
    std::thread::scope(|scope| {
        for (part, values) in values.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (block, values) in values.chunks_mut(BLOCK).enumerate() {
                    let mut random = Random(0x6772_6164 + ((part * share / BLOCK + block) as u64) * 0x1_0000_0001);
                    values.iter_mut().for_each(|v| {
                        let chi_squared = -2.0 * (random.unit() * random.unit()).ln();
                        *v = (0.01 * random.normal() / (chi_squared / 4.0).sqrt()) as f32;
                    });
                }
            });
        }
    });
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_synthetic_gradient_is_heavy_tailed_and_its_own_prefix() {
        let long = synthetic(300_000);
        assert_eq!(long[..70_000], synthetic(70_000));
        let moment = |k| long.iter().map(|v| f64::from(*v).powi(k)).sum::<f64>() / long.len() as f64;
        assert!(moment(1).abs() < 1e-4);
        assert!(moment(4) / moment(2).powi(2) > 5.0, "a normal variable has 3");
    }

    #[test]
    fn shipped_gradients_repeat_until_there_are_enough() {
        let source = load(None, None, Dtype::Bf16).unwrap();
        let n = source.elements();
        let values = source.repeated(2 * n + 5);
        assert_eq!((values.len(), &values[..n], &values[2 * n..]), (2 * n + 5, &values[n..2 * n], &values[..5]));
        assert!(values.iter().all(|v| bf16::from_f32(*v).to_f32() == *v));
    }

    #[test]
    fn captured_steps_are_told_apart() {
        let mut source = load(None, None, Dtype::F32).unwrap();
        let steps = source.steps();
        assert_eq!(steps.iter().map(|s| s.label.as_str()).collect::<Vec<_>>(), ["early", "middle", "late"]);
        assert!(steps.iter().all(|s| s.elements() == 188_234 && s.tensors[1].shape == [32, 1, 3, 3]));
        source.tensors[0].shape = vec![2, 16];
        assert_eq!(source.steps().len(), 1, "another model than the others");
    }

    #[test]
    fn a_file_of_halves_is_not_reported_as_f32() {
        let path = std::env::temp_dir().join(format!("gradwire-source-{}.safetensors", std::process::id()));
        let write = |dtypes: &[(&str, usize)]| {
            let (mut header, mut at) = (serde_json::Map::new(), 0);
            for (index, (dtype, size)) in dtypes.iter().enumerate() {
                let entry = serde_json::json!({ "dtype": dtype, "shape": [4], "data_offsets": [at, at + 4 * size] });
                header.insert(format!("t{index}"), entry);
                at += 4 * size;
            }
            let header = serde_json::Value::from(header).to_string();
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0x3f; at]].concat();
            std::fs::write(&path, bytes).unwrap();
        };
        write(&[("BF16", 2)]);
        let own = load(Some(&path), None, None).unwrap();
        assert_eq!(own.dtype, Dtype::Bf16);
        assert!(own.label.ends_with("1 tensor, 4 elements, bf16"), "{}", own.label);
        let wide = load(Some(&path), None, Dtype::F32).unwrap();
        assert!(wide.dtype == Dtype::F32 && wide.label.ends_with("bf16 in the file, encoded as f32"), "{}", wide.label);
        write(&[("F16", 2), ("F32", 4)]);
        let both = load(Some(&path), None, None).unwrap();
        assert_eq!(both.dtype, Dtype::F32);
        assert!(both.label.ends_with("f16 and f32 in the file, encoded as f32"), "{}", both.label);
        std::fs::remove_file(&path).unwrap();
    }

    /// A file of tensors, each with its name, its type, and so many elements of two, four or eight bytes.
    fn file(name: &str, tensors: &[(&str, &str, usize, usize)]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("gradwire-{name}-{}.safetensors", std::process::id()));
        let (mut header, mut at) = (serde_json::Map::new(), 0);
        for (name, dtype, elements, size) in tensors {
            let end = at + elements * size;
            let entry = serde_json::json!({ "dtype": dtype, "shape": [elements], "data_offsets": [at, end] });
            header.insert((*name).to_owned(), entry);
            at = end;
        }
        let header = serde_json::Value::from(header).to_string();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0x3f; at]].concat();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn tensors_of_other_types_are_left_out_by_name() {
        let all = [("norm.weight", "F32", 4, 4), ("norm.num_batches_tracked", "I64", 1, 8), ("mask", "BOOL", 3, 1)];
        let path = file("types", &all);
        let source = load(Some(&path), None, None).unwrap();
        assert_eq!((source.tensors.len(), source.dtype), (1, Dtype::F32));
        let expected = ["tensor mask is BOOL", "tensor norm.num_batches_tracked is I64"];
        let said = source.left_out.iter().map(|line| line.split(';').next().unwrap_or_default());
        assert_eq!(said.collect::<Vec<_>>(), expected);
        std::fs::remove_file(path).unwrap();
        let path = file("counters", &all[1..]);
        let error = load(Some(&path), None, None).err().unwrap();
        assert!(error.contains("no tensor that can be compressed: tensor mask is BOOL"), "{error}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn names_reach_the_terminal_as_escapes() {
        let path =
            file("names", &[("a\u{1b}[2J.w", "F32", 2, 4), ("b\u{202e}\n", "I64", 1, 8), ("Größe \"1\"", "F32", 1, 4)]);
        let source = load(Some(&path), None, None).unwrap();
        let names: Vec<&str> = source.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["Größe \"1\"", "a\\u{1b}[2J.w"]);
        assert!(source.left_out[0].starts_with("tensor b\\u{202e}\\n is I64"), "{:?}", source.left_out);
        std::fs::remove_file(path).unwrap();
        let wrong = load(Some(Path::new("no/\u{1b}such")), None, None).err().unwrap();
        assert!(wrong.starts_with("no/\\u{1b}such could not be read"), "{wrong}");
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_with_a_reason() {
        let missing = load(Some(Path::new("no/such.safetensors")), None, Dtype::F32).err().unwrap();
        assert!(missing.starts_with("no/such.safetensors could not be read"), "{missing}");
        let wrong = load(Some(Path::new("Cargo.toml")), None, Dtype::F32).err().unwrap();
        assert!(wrong.contains("not a safetensors file") && wrong.contains("--input"), "{wrong}");
    }
}
