//! The ONNX format: a graph from features to logits, probabilities and the index of the most likely
//! class. Its few protocol-buffer messages are encoded by hand.

use super::RowPreparation;
use hetal_learn::Scaling;

const FLOAT: u64 = 1;
const INT64: u64 = 7;
const IR_VERSION: u64 = 8;
const OPSET: u64 = 13;

/// Encodes a protocol-buffer message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    fn number(mut self, field: u64, x: u64) -> Self {
        self.varint(field << 3);
        self.varint(x);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: Message) -> Self {
        self.bytes(field, &message.0)
    }
}

/// Encodes a model file. Weights have single precision, which every runtime supports.
pub fn write(classes: &[String], weights: &[Vec<f64>], bias: &[f64], rows: &RowPreparation) -> Vec<u8> {
    let (count, features) = (classes.len() as u64, weights.first().map_or(0, Vec::len) as u64);
    let flat: Vec<f64> = weights.concat();
    let (prepared, graph) = preparation(rows);
    let gemm = node("Gemm", &[prepared, "weights", "bias"], "logits").message(5, attribute("transB", 1));
    let softmax = node("Softmax", &["logits"], "probabilities").message(5, attribute("axis", 1));
    let argmax =
        node("ArgMax", &["logits"], "class").message(5, attribute("axis", 1)).message(5, attribute("keepdims", 0));
    let graph = graph
        .message(1, gemm)
        .message(1, softmax)
        .message(1, argmax)
        .text(2, "hetal")
        .message(5, tensor("weights", &[count, features], &flat))
        .message(5, tensor("bias", &[count], bias))
        .message(11, value("features", FLOAT, Some(features)))
        .message(12, value("probabilities", FLOAT, Some(count)))
        .message(12, value("class", INT64, None))
        .message(12, value("logits", FLOAT, Some(count)));
    let names = serde_json::Value::from(classes.to_vec()).to_string();
    Message::default()
        .number(1, IR_VERSION)
        .text(2, "hetal")
        .message(7, graph)
        .message(8, Message::default().text(1, "").number(2, OPSET))
        .message(14, Message::default().text(1, "classes").text(2, &names))
        .0
}

/// A graph of what is done to rows before the weights apply, and the name of its output.
fn preparation(rows: &RowPreparation) -> (&'static str, Message) {
    /// Rows shorter than this are zeros.
    const SHORTEST: f64 = 1e-30;
    let (mut last, mut graph) = ("features", Message::default());
    if let Some(fill) = &rows.impute {
        graph = graph
            .message(5, tensor("fill", &[fill.len() as u64], fill))
            .message(1, node("IsNaN", &[last], "missing"))
            .message(1, node("Where", &["missing", "fill", last], "filled"));
        last = "filled";
    }
    if rows.scale == Some(Scaling::Sqrt) {
        graph = graph
            .message(1, node("Abs", &[last], "magnitudes"))
            .message(1, node("Sqrt", &["magnitudes"], "roots"))
            .message(1, node("Sign", &[last], "signs"))
            .message(1, node("Mul", &["roots", "signs"], "signed_roots"));
        last = "signed_roots";
    }
    if rows.scale.is_some() {
        let length = node("ReduceL2", &[last], "length").message(5, attributes("axes", &[1]));
        graph = graph
            .message(5, tensor("shortest", &[1], &[SHORTEST]))
            .message(1, length.message(5, attribute("keepdims", 1)))
            .message(1, node("Max", &["length", "shortest"], "divisor"))
            .message(1, node("Div", &[last, "divisor"], "directions"));
        last = "directions";
    }
    (last, graph)
}

fn node(operator: &str, inputs: &[&str], output: &str) -> Message {
    let node = inputs.iter().fold(Message::default(), |node, input| node.text(1, input));
    node.text(2, output).text(3, output).text(4, operator)
}

/// An integer attribute.
fn attribute(name: &str, x: u64) -> Message {
    const INT: u64 = 2;
    Message::default().text(1, name).number(3, x).number(20, INT)
}

/// An attribute of several integers.
fn attributes(name: &str, values: &[u64]) -> Message {
    const INTS: u64 = 7;
    let attribute = values.iter().fold(Message::default().text(1, name), |message, &x| message.number(8, x));
    attribute.number(20, INTS)
}

fn tensor(name: &str, shape: &[u64], values: &[f64]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let tensor = shape.iter().fold(Message::default(), |tensor, &n| tensor.number(1, n));
    tensor.number(2, FLOAT).text(8, name).bytes(9, &bytes)
}

/// An input or output with one row per sample.
fn value(name: &str, kind: u64, columns: Option<u64>) -> Message {
    let rows = Message::default().text(2, "rows");
    let shape = Message::default().message(1, rows);
    let shape = match columns {
        Some(n) => shape.message(1, Message::default().number(1, n)),
        None => shape,
    };
    let tensor = Message::default().number(1, kind).message(2, shape);
    Message::default().text(1, name).message(2, Message::default().message(1, tensor))
}

/// Decodes weights, bias and class names of a file that [`write()`] encoded; `None` for other
/// files.
pub fn read_gemm(bytes: &[u8]) -> Option<(Vec<f32>, Vec<f32>, Vec<String>)> {
    let model = fields(bytes)?;
    let graph = fields(find(&model, 7)?)?;
    let names = fields(find(&model, 14)?)?;
    let tensor = |wanted: &str| {
        let tensors = graph.iter().filter(|(field, _)| *field == 5).map(|(_, bytes)| fields(bytes));
        let tensor = tensors.flatten().find(|tensor| find(tensor, 8) == Some(wanted.as_bytes()))?;
        let floats = find(&tensor, 9)?.chunks_exact(4);
        Some(floats.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    };
    Some((tensor("weights")?, tensor("bias")?, serde_json::from_slice(find(&names, 2)?).ok()?))
}

fn find<'a>(fields: &[(u64, &'a [u8])], wanted: u64) -> Option<&'a [u8]> {
    fields.iter().find(|(field, _)| *field == wanted).map(|(_, bytes)| *bytes)
}

/// The length-delimited fields of a message, without its numbers.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        match key & 7 {
            0 => drop(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (content, rest) = bytes.split_at_checked(length)?;
                fields.push((key >> 3, content));
                bytes = rest;
            }
            _ => return None,
        }
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut x = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        x |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(x);
        }
    }
    None
}
