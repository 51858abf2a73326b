//! Merged sparsification: the settings of OMGS, with the times that its authors plotted.

use gradwire_planner::{CodecCost, Curve, Groups, Layer, Line, Profile, Route, Rule, Sparse};

use super::network::Network;
use super::networks::{inception_v4, lstm_ptb, resnet50, vgg16_small};

/// Seconds per element and bit of a top-k on a P102-100, by the authors' fit (`s` in utils.py).
pub(super) const SORT: f64 = 2.188_969_57e-10;
/// Workers, and the part of the elements that each sends.
pub(super) const WORKERS: u32 = 16;
pub(super) const DENSITY: f64 = 0.001;
/// Seconds of an all-gather of 16 workers over 1 Gb/s, and per byte that it gathers, by the authors' fit
/// (`GbE_multi_p_ab` in utils.py). Values and indices are two of them.
const GATHER: Line = Line::new(1.1e-2, 1.7e-8);

/// What the authors plotted of a network (`timebreaks` in a public script of theirs): seconds of forward pass, backward
/// pass, selection and the communication that is not hidden, with one selection of everything and with merged groups.
struct Published {
    network: fn() -> Network,
    whole: [f64; 4],
    merged: [f64; 4],
}

const PUBLISHED: [Published; 4] = [
    Published { network: resnet50, whole: [0.09, 0.12, 0.1376, 0.3185], merged: [0.09, 0.12, 0.1321, 0.165] },
    Published { network: inception_v4, whole: [0.305, 0.524, 0.2368, 0.5357], merged: [0.305, 0.524, 0.22, 0.19409] },
    Published { network: lstm_ptb, whole: [0.076, 0.13089, 0.37548, 0.437], merged: [0.076, 0.13089, 0.33875, 0.3705] },
    Published { network: vgg16_small, whole: [0.021, 0.0313, 0.0767, 0.207], merged: [0.021, 0.0313, 0.0737, 0.205] },
];

/// A network.
pub(super) struct Row {
    pub(super) network: &'static str,
    /// Seconds to select from everything at once, published and by the fit; and from merged groups, published and from
    /// the best groups.
    pub(super) selection: [f64; 4],
    /// Seconds to exchange everything at once, published and by the fit.
    pub(super) exchange: [f64; 2],
    /// How many times as fast merged groups are as everything at once, as published.
    pub(super) published: f64,
    /// The same over the link of the authors' fit, and over one on which the exchange of everything takes as long as
    /// published.
    pub(super) fit: Gains,
    pub(super) slow: Gains,
}

/// How many times as fast as everything at once an iteration is.
pub(super) struct Gains {
    pub(super) each: f64,
    /// The published rule, and the same as in the authors' program.
    pub(super) rules: [f64; 2],
    pub(super) best: f64,
    /// How many groups are best, and the seconds of their selections.
    pub(super) groups: usize,
    selection: f64,
}

/// Gains with this exchange, in seconds over elements.
fn gains(profile: &Profile, exchange: Line) -> Result<Gains, String> {
    let encode = Curve::Sort { scale: SORT };
    let codec = CodecCost { encode, bytes_per_element: 1.0, ..CodecCost::dense() };
    let sparse = Sparse::new(profile, Route { codec, exchange, payloads: 1 }).map_err(|e| e.to_string())?;
    let finish = |groups: Groups| sparse.finish(&groups).map_err(|e| e.to_string());
    let layers = profile.layers();
    let whole = finish(Groups::single(layers.len()))?;
    let best = sparse.exact();
    let elements = |group: std::ops::Range<usize>| layers[group].iter().map(|layer| layer.elements).sum();
    Ok(Gains {
        each: whole / finish(Groups::each(layers.len()))?,
        rules: [whole / finish(sparse.rule(Rule::Paper))?, whole / finish(sparse.rule(Rule::Program))?],
        groups: best.len(),
        selection: best.ranges().map(|group| encode.at(elements(group))).sum(),
        best: whole / finish(best)?,
    })
}

/// The published passes, the backward one shared by what each layer computes.
fn profile(network: &Network, [forward, backward, ..]: [f64; 4]) -> Result<Profile, String> {
    let all = network.products() as f64;
    let layers = network.layers.iter().rev();
    let layers = layers.map(|l| Layer::new(&l.name, l.elements, backward * l.products as f64 / all)).collect();
    Profile::new(forward, layers).map_err(|e| e.to_string())
}

/// All networks.
pub(super) fn rows() -> Result<Vec<Row>, String> {
    let row = |published: &Published| {
        let (network, whole) = ((published.network)(), published.whole);
        let elements = network.elements();
        let bytes = DENSITY * 4.0 * f64::from(WORKERS);
        let fit = Line::new(2.0 * GATHER.start, 2.0 * GATHER.per_unit * bytes);
        let slow = Line::new(fit.start, (whole[3] - fit.start) / elements as f64);
        let profile = profile(&network, whole)?;
        let total = |times: [f64; 4]| times.iter().sum::<f64>();
        let (fit_gains, slow) = (gains(&profile, fit)?, gains(&profile, slow)?);
        let by_fit = Curve::Sort { scale: SORT }.at(elements);
        Ok(Row {
            network: network.name,
            selection: [whole[2], by_fit, published.merged[2], slow.selection],
            exchange: [whole[3], fit.at(elements as f64)],
            published: total(whole) / total(published.merged),
            fit: fit_gains,
            slow,
        })
    };
    PUBLISHED.iter().map(row).collect()
}
