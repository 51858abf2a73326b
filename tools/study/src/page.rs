//! The page of the study: tables, and what they say beside the papers.

mod accuracy;
mod replays;
mod table;

use std::fmt::Write as _;

pub(super) use self::accuracy::accuracy;
use self::table::{head, row};
use super::cells::{CODECS, SAMPLES, SEQUENCES, bytes_per_element, gains, networks};
use super::machines::{GPUS, LINKS};
use super::{grace, merging, train};

/// Workers of the tables.
const WORKERS: u32 = 8;

const HEAD: &str = "# Studies of the literature, simulated

`cargo xtask study --write` writes this page, and a test holds it to that. Nothing here was measured on a GPU: iterations are
computed by the planner's models ([planner](../planner/README.md)) from tables of layers, published rates of training, and
the bytes that a codec moves. `cargo xtask study --csv FILE` writes all iterations of the first study. The last section alone is of
trainings that were run, on a CPU.

What is taken from where:

- **Layers** from the papers of the networks; the numbers of parameters are tested against published ones. The LSTM's sizes
  are not published: three layers of 768 cells make its 13 million parameters.
- **Passes** from images per second of one GPU: \"Benchmarks\", TensorFlow's guide of May 2017 (K80 and P100, without
  input). A network that is not among them (*) computes as many products per second as VGG16 (VGG19) or ResNet-50 (all
  others). A third of the time is the forward pass. **No such figure is at hand for Hopper: ten times the P100's are assumed.**
- **Codecs** by their bytes at the GPU's copy rate (185 and 564 GB/s, 77 % of the data sheets, and 4.3 TB/s of an H200), with
  10 us for each launch.
- **Links** of the first study are assumed: 1 GB/s and 50 us through the host's memory (MPI-like), 8 GB/s and 20 us between
  GPUs (NCCL-like). The others are the planner's.

";

/// The page.
pub(super) fn page() -> Result<String, String> {
    let mut text = HEAD.to_owned();
    table_of_networks(&mut text);
    grubic(&mut text)?;
    merged(&mut text)?;
    replays::merged_sparsification(&mut text)?;
    replays::global_selection(&mut text)?;
    replays::devices(&mut text)?;
    methods(&mut text)?;
    accuracy(&mut text, &train::trained()?)?;
    Ok(text)
}

/// A number with three digits or more.
fn digits(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

fn table_of_networks(text: &mut String) {
    head(
        text,
        &[
            "network",
            "layers",
            "parameters, M",
            "products, G",
            "samples/s, Kepler",
            "Pascal",
            "Hopper",
            "1 bit per column, bytes",
        ],
    );
    for network in networks() {
        let rate = |gpu: &super::machines::Gpu| {
            let (images, published) = gpu.images(&network);
            format!("{}{}", digits(images), if published { "" } else { " *" })
        };
        let [elements, products] = [network.elements() as f64 / 1e6, network.products() as f64 / 1e9];
        let cells = [
            network.name.to_owned(),
            network.layers.len().to_string(),
            format!("{elements:.1}"),
            format!("{products:.2}"),
        ];
        let column = format!("{:.2}", bytes_per_element(0, &network));
        row(text, cells.into_iter().chain(GPUS.iter().map(rate)).chain([column]));
    }
}

fn grubic(text: &mut String) -> Result<(), String> {
    let _ = write!(
        text,
        "
## Low precision between GPUs of one machine (Grubic et al., EDBT 2018)

How many times as fast as with 32 bits an iteration of {SAMPLES:.0} samples ({SEQUENCES:.0} sequences) is, shared by {WORKERS}
workers, in two phases: each layer by itself behind the backward pass, as in CNTK; and in brackets in the best groups beside
the backward pass, for both.

![Gains of four bits by network, link and GPU](study.svg)
"
    );
    for gpu in &GPUS {
        for link in &LINKS {
            let _ = write!(text, "\n{}, {}:\n\n", gpu.name, link.name);
            head(text, &[&["network"], &CODECS[..]].concat());
            for network in networks() {
                let gains = gains(gpu, link, &network, WORKERS)?;
                let cells = gains.iter().map(|[behind, beside]| format!("{behind:.2} ({beside:.2})"));
                row(text, std::iter::once(network.name.to_owned()).chain(cells));
            }
        }
    }
    text.push_str(
        "
As in the paper: over MPI on Kepler, AlexNet gains more than twice and VGG19 does with 16 workers (1.7 with 8, where half a K80 takes 1.1 s
for 32 samples); ResNet-110 and BN-Inception gain a fifth at most; over NCCL all gain less. One bit per column is a loss on ResNets,
where a column is a row of a kernel, one number or three beside two means; reshaped into buckets of 64 it is none. Two bits save
little beside four.

Not as in the paper: ResNet-110 loses a little over NCCL, where launches for each of 110 layers take longer than the bytes that they save.

Not in the paper: exchanged in the best groups beside the backward pass, ResNets on Kepler hide all of their 32 bits, and a codec saves
nothing. On faster GPUs it does again, since passes shrink and bytes do not.
",
    );
    Ok(())
}

fn merged(text: &mut String) -> Result<(), String> {
    let samples = merging::SAMPLES;
    let _ = write!(
        text,
        "
## Merged gradients (Shi et al., MG-WFBP, 2019)

Milliseconds of an iteration without compression, workers with {samples:.0} samples each: Kepler behind 10 Gb/s, Pascal behind
InfiniBand. The paper's times of layers are not public: a network but ResNet-152 computes as many products per second as
ResNet-50.

"
    );
    head(
        text,
        &["network", "link", "workers", "passes alone", "each layer", "all at once", "published rule", "best groups"],
    );
    for r in merging::rows()? {
        let times = std::iter::once(r.compute).chain(r.seconds).map(|seconds| format!("{:.1}", 1e3 * seconds));
        row(text, [r.network.to_owned(), r.link.to_owned(), r.workers.to_string()].into_iter().chain(times));
    }
    text.push_str(
        "
As in the paper: merged groups are never slower than both others. With 64 workers they stay within 1 % of the passes alone, where each
layer by itself takes up to 2.5 times as long, by the start-up of its messages, and all at once 14 to 29 % longer. The published rule
finds the best groups here.

Not as in the paper: on ResNet-152 over InfiniBand each layer by itself is as fast as merged groups with 16 workers, and
not faster. On Inception-v4 it is within 0.2 % of merged groups with 64 workers too: its passes are so long that they hide
the start-up of nearly all messages.
",
    );
    Ok(())
}

fn methods(text: &mut String) -> Result<(), String> {
    let (workers, samples) = (grace::WORKERS, grace::SAMPLES);
    let _ = write!(
        text,
        "
## GRACE's methods on ResNet-50 (Xu et al., ICDCS 2021)

How many times as fast as without compression an iteration is, {workers} workers with {samples:.0} samples each on Pascal (GRACE had V100s),
in the best groups beside the backward pass. Payloads are gathered, but those of none, random-k and PowerSGD, which are summed.
Bytes are of the gradient in benches/data, with GRACE's settings; PowerSGD's matrices are taken to be square.

"
    );
    let names = grace::RATES.map(|rate| format!("{rate} Gb/s"));
    head(text, &[&["method", "bytes per element"], &names.each_ref().map(String::as_str)[..]].concat());
    for r in grace::rows()? {
        let gains = r.gains.map(|gain| format!("{gain:.2}"));
        row(text, [r.method.to_owned(), format!("{:.3}", r.bytes)].into_iter().chain(gains));
    }
    text.push_str(
        "
As in the paper: on fast links nothing pays, because the whole gradient's sum hides behind the backward pass; and on the slow one some
methods lose. Of payloads that are gathered each rank receives seven, where a sum takes 1.75 gradients: so a method pays from less than
one byte per element on, and GRACE's casts to f16 and its selections of 30 % do not.

Not as in the paper: signs, which GRACE sends as bytes and makes with operators of a framework, are fastest here.
",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the page says of Grubic et al., as numbers.
    #[test]
    fn low_precision_gains_what_the_page_says() {
        let of = |gpu: usize, link: usize, network: &crate::network::Network, workers| {
            gains(&GPUS[gpu], &LINKS[link], network, workers).expect("simulated")
        };
        let most = |gains: &[[f64; 2]]| gains.iter().map(|[behind, _]| *behind).fold(0.0, f64::max);
        for network in networks() {
            let (mpi, nccl) = (of(0, 0, &network, WORKERS), of(0, 1, &network, WORKERS));
            assert!(mpi.iter().zip(&nccl).skip(1).all(|(mpi, nccl)| mpi[0] > nccl[0]), "{}", network.name);
            let expected = match network.name {
                "AlexNet" => 2.0..f64::INFINITY,
                "VGG19" => 1.7..2.0,
                "ResNet-110" | "BN-Inception" => 1.0..1.2,
                _ => 1.0..3.0,
            };
            assert!(expected.contains(&most(&mpi)), "{}: {}", network.name, most(&mpi));
            if network.name == "VGG19" {
                assert!(most(&of(0, 0, &network, 16)) > 2.0);
            }
            if network.name.starts_with("ResNet") {
                let [column, reshaped] = [mpi[0][0], mpi[1][0]];
                assert!(column < 1.0 && reshaped > 1.0, "{}: {column} and {reshaped}", network.name);
                assert!(mpi.iter().all(|[_, beside]| *beside < 1.01), "{}", network.name);
            }
        }
    }

    #[test]
    fn merged_gradients_are_as_fast_as_the_page_says() {
        for r in merging::rows().expect("simulated") {
            let [each, whole, rule, best] = r.seconds;
            assert!(r.network != "Inception-v4" || each < 1.002 * best, "{each} and {best}");
            assert!(best <= rule && rule <= each.min(whole) && rule < 1.0001 * best, "{}", r.network);
            assert!(
                best < 1.01 * r.compute && each < 2.55 * best && (1.135..1.295).contains(&(whole / best)),
                "{}",
                r.network
            );
        }
    }

    #[test]
    fn methods_pay_from_a_byte_per_element_on() {
        for r in grace::rows().expect("simulated") {
            assert!(r.gains[1..].iter().all(|gain| *gain < 1.01), "{}", r.method);
            if !matches!(r.method, "none" | "randomk" | "powersgd") {
                assert_eq!(r.bytes < 0.99, r.gains[0] > 1.01, "{}: {}", r.method, r.gains[0]);
            }
        }
    }

    #[test]
    fn the_page_is_what_the_command_writes() {
        let committed = include_str!("../../../docs/study.md");
        assert!(committed == page().expect("simulated"), "run cargo xtask study --write");
        let committed = include_str!("../../../docs/study.svg");
        assert!(committed == super::super::chart::chart().expect("simulated"), "run cargo xtask study --write");
    }
}
