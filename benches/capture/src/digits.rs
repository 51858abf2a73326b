//! Reads the gzipped csv of 8x8 digit images.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::error::CaptureError;

pub(crate) const SIDE: usize = 8;
pub(crate) const PIXELS: usize = SIDE * SIDE;
pub(crate) const CLASSES: usize = 10;

/// A pixel counts the ink dots in a 4x4 block, so 16 is the largest value.
const MAX_PIXEL: u32 = 16;

/// The real file unpacks to 260 KB. The limit keeps a wrong or hostile file
/// from filling the memory.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Images with pixels scaled to 0..=1, one after another, and their labels.
#[derive(Debug)]
pub(crate) struct Digits {
    pixels: Vec<f32>,
    labels: Vec<u32>,
}

impl Digits {
    pub(crate) fn load(path: &Path) -> Result<Self, CaptureError> {
        let io = |source| CaptureError::Io {
            action: "read the digits file",
            path: path.to_path_buf(),
            hint: "run from the root of the repository, or give the gzipped csv with --digits",
            source,
        };
        let file = File::open(path).map_err(io)?;
        let mut text = String::new();
        GzDecoder::new(file).take(MAX_TEXT_BYTES).read_to_string(&mut text).map_err(io)?;
        Self::parse(&text)
    }

    /// Each line holds the 64 pixels of one image row by row, then its label.
    pub(crate) fn parse(text: &str) -> Result<Self, CaptureError> {
        let mut pixels = Vec::new();
        let mut labels = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let bad = |found| CaptureError::Csv { line: index + 1, found };
            let fields = line
                .split(',')
                .map(|field| field.trim().parse::<u32>())
                .collect::<Result<Vec<u32>, _>>()
                .map_err(|error| bad(format!("one field is not a whole number ({error})")))?;
            if fields.len() != PIXELS + 1 {
                return Err(bad(format!("it has {} fields", fields.len())));
            }
            let (image, label) = (&fields[..PIXELS], fields[PIXELS]);
            if let Some(pixel) = image.iter().find(|&&pixel| pixel > MAX_PIXEL) {
                return Err(bad(format!("it has a pixel of {pixel}")));
            }
            if label as usize >= CLASSES {
                return Err(bad(format!("its label is {label}")));
            }
            // Division by 16 is exact, so the scaling loses nothing.
            pixels.extend(image.iter().map(|&pixel| pixel as f32 / MAX_PIXEL as f32));
            labels.push(label);
        }
        Ok(Self { pixels, labels })
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Gathers the pixels and labels of the images at `indices`.
    pub(crate) fn select(&self, indices: &[usize]) -> (Vec<f32>, Vec<u32>) {
        let pixels = indices.iter().flat_map(|&index| &self.pixels[index * PIXELS..][..PIXELS]).copied().collect();
        let labels = indices.iter().map(|&index| self.labels[index]).collect();
        (pixels, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pixel: u32, label: u32) -> String {
        format!("{}{label}\n", format!("{pixel},").repeat(PIXELS))
    }

    fn message(text: &str) -> String {
        Digits::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn good_lines_become_scaled_images() {
        let digits = Digits::parse(&(line(0, 3) + &line(4, 9) + &line(16, 0))).unwrap();
        assert_eq!(digits.len(), 3);
        let (pixels, labels) = digits.select(&[2, 1]);
        assert_eq!(labels, [0, 9]);
        assert_eq!(pixels[..PIXELS], [1.0; PIXELS]);
        assert_eq!(pixels[PIXELS..], [0.25; PIXELS]);
    }

    #[test]
    fn carriage_returns_are_accepted() {
        let text = line(1, 2).replace('\n', "\r\n");
        assert_eq!(Digits::parse(&text).unwrap().len(), 1);
    }

    #[test]
    fn bad_lines_name_their_number_and_fault() {
        let good = line(1, 1);
        let short = message(&format!("{good}1,2,3\n"));
        assert!(short.contains("line 2") && short.contains("3 fields"));
        assert!(message(&line(17, 1)).contains("pixel of 17"));
        assert!(message(&line(1, 10)).contains("label is 10"));
        assert!(message(&good.replacen('1', "x", 1)).contains("not a whole number"));
        assert!(message(&good.replacen('1', "-1", 1)).contains("not a whole number"));
        assert!(message(&format!("{good}\n{good}")).contains("line 2"));
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = Digits::load(Path::new("no/such/file.gz")).unwrap_err();
        assert!(error.to_string().contains("no/such/file.gz"));
    }

    #[test]
    fn the_real_file_has_1797_images() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/digits.csv.gz");
        assert_eq!(Digits::load(&path).unwrap().len(), 1797);
    }
}
