//! Networks against golden outputs of the reference implementations (reference/golden.py).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_features::Extractor;
use hetal_features::sentence::TextCoverage;
use serde_json::Value;

fn vectors(value: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(value.clone()).unwrap()
}

fn assert_near(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= bound, "differs by {worst}");
}

#[test]
fn sentence_encoders_agree_with_transformers() {
    let golden: Value = serde_json::from_str(include_str!("golden/sentences.json")).unwrap();
    let sentences: Vec<&str> = golden["sentences"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    for family in ["mpnet", "bert"] {
        let folder = tempfile::tempdir().unwrap();
        common::write_sentence_model(folder.path(), family);
        let extractor = Extractor::open(folder.path()).unwrap();
        let found = extractor.extract_texts(&sentences).unwrap();
        for (found, expected) in found.iter().zip(vectors(&golden[family])) {
            assert_near(found, &expected, 2e-5);
        }
        // Alone or among others, a sentence has the same vector.
        for (text, together) in sentences.iter().zip(&found) {
            assert_near(&extractor.extract_text(text).unwrap(), together, 1e-6);
        }
    }
}

#[test]
fn vision_transformers_agree_with_transformers() {
    let golden: Value = serde_json::from_str(include_str!("golden/pictures.json")).unwrap();
    for prefix in ["", "vit."] {
        let folder = tempfile::tempdir().unwrap();
        common::write_vit(folder.path(), prefix);
        let extractor = Extractor::open(folder.path()).unwrap();
        for ((width, height), expected) in [(50, 40), (70, 9)].into_iter().zip(vectors(&golden["vit"])) {
            let path = folder.path().join("pattern.png");
            common::write_pattern(&path, width, height);
            assert_near(&extractor.extract_image(&path).unwrap(), &expected, 2e-5);
        }
    }
}

#[test]
fn efficientnet_lite0_agrees_with_torch() {
    let golden: Value = serde_json::from_str(include_str!("golden/pictures.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (weights, picture) = (folder.path().join("model.safetensors"), folder.path().join("pattern.png"));
    common::write_lite0(&weights);
    common::write_pattern(&picture, 50, 40);
    // The folder and the lone file are the same model.
    for path in [folder.path(), &weights] {
        let extractor = Extractor::open(path).unwrap();
        assert_eq!(extractor.identity().architecture, "efficientnet-lite0");
        let found = extractor.extract_image(&picture).unwrap();
        let every_40th: Vec<f32> = found.iter().step_by(40).copied().collect();
        assert_near(&every_40th, &vectors(&serde_json::json!([golden["lite0"]["every_40th"]]))[0], 2e-5);
        let mean = found.iter().sum::<f32>() / found.len() as f32;
        assert!((mean - golden["lite0"]["mean"].as_f64().unwrap() as f32).abs() < 1e-5, "mean {mean}");
    }
}

#[test]
fn sentence_transformers_files_decide_pooling_length_and_scale() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let plain = Extractor::open(folder.path()).unwrap().extract_text("play some jazz").unwrap();
    write(
        "modules.json",
        r#"[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Normalize", "path": ""}]"#,
    );
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    write("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#);
    write("sentence_bert_config.json", r#"{"max_seq_length": 5}"#);
    let extractor = Extractor::open(folder.path()).unwrap();
    let found = extractor.extract_text("play some jazz").unwrap();
    let length = plain.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert_near(&found, &plain.iter().map(|x| x / length).collect::<Vec<_>>(), 1e-6);
    // Five tokens are the start, three words and the end. More words change nothing and are
    // reported.
    assert!(
        extractor.tokens("play some jazz").unwrap().reading == TextCoverage::All
            && extractor.tokens("play some jazz in a song").unwrap().reading == TextCoverage::Beginning
    );
    assert_near(&extractor.extract_text("play some jazz in a song").unwrap(), &found, 1e-6);
}

/// As sentence-transformers 6 writes them: the pooling has a name, the limit is the tokenizer's.
#[test]
fn newer_files_of_sentence_transformers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let text = "play some jazz in a song";
    let mean = Extractor::open(folder.path()).unwrap().extract_text(text).unwrap();
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    write(
        "modules.json",
        r#"[{"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""},
            {"type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling", "path": "1_Pooling"}]"#,
    );
    write("sentence_bert_config.json", r#"{"transformer_task": "feature-extraction"}"#);
    write("1_Pooling/config.json", r#"{"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": true}"#);
    write("tokenizer_config.json", r#"{"model_max_length": 1000000000000000019884624838656}"#);
    assert_near(&Extractor::open(folder.path()).unwrap().extract_text(text).unwrap(), &mean, 1e-6);
    write("1_Pooling/config.json", r#"{"pooling_mode": ["cls"]}"#);
    write("tokenizer_config.json", r#"{"model_max_length": 5}"#);
    let extractor = Extractor::open(folder.path()).unwrap();
    assert_eq!(extractor.tokens(text).unwrap().reading, TextCoverage::Beginning);
    assert_ne!(extractor.extract_text(text).unwrap(), mean);
    // The older file's limit goes before.
    write("sentence_bert_config.json", r#"{"max_seq_length": 12}"#);
    assert_eq!(Extractor::open(folder.path()).unwrap().tokens(text).unwrap().reading, TextCoverage::All);
    for pooling in [r#"{"pooling_mode": ["mean", "max"]}"#, r#"{"pooling_mode": "lasttoken"}"#, "{}"] {
        write("1_Pooling/config.json", pooling);
        assert!(
            Extractor::open(folder.path()).err().unwrap().to_string().contains("asks for the pooling"),
            "{pooling}"
        );
    }
}

#[test]
fn small_letters_and_prompts_are_obeyed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let tokenizer = include_str!("golden/tokenizer.json");
    write("tokenizer.json", &tokenizer.replace(r#"{"type": "Lowercase"}"#, "null"));
    let vector = |text: &str| Extractor::open(folder.path()).unwrap().extract_text(text).unwrap();
    assert_ne!(vector("Play JAZZ"), vector("play jazz"));
    write("sentence_bert_config.json", r#"{"max_seq_length": 12, "do_lower_case": true}"#);
    assert_eq!(vector("Play JAZZ"), vector("play jazz"));
    let prompts = |name: &str| {
        let text = format!(r#"{{"prompts": {{"query": "", "passage": "passage: "}}, "default_prompt_name": {name}}}"#);
        write("config_sentence_transformers.json", &text);
        Extractor::open(folder.path())
    };
    assert!(prompts("null").is_ok() && prompts(r#""query""#).is_ok());
    let error = prompts(r#""passage""#).err().unwrap().to_string();
    assert!(error.contains("\"passage: \" before every text"), "{error}");
}

#[cfg(feature = "onnx")]
#[test]
fn onnx_models_agree_with_onnxruntime() {
    let folder = tempfile::tempdir().unwrap();
    let (model, picture) = (folder.path().join("small.onnx"), folder.path().join("pattern.png"));
    std::fs::write(&model, include_bytes!("golden/small.onnx")).unwrap();
    common::write_pattern(&picture, 50, 40);
    let extractor = Extractor::open(&model).unwrap();
    let golden: Vec<f32> = serde_json::from_str(include_str!("golden/onnx.json")).unwrap();
    assert_eq!(extractor.identity().columns, 5);
    assert_near(&extractor.extract_image(&picture).unwrap(), &golden, 1e-5);
    // Another preprocessing beside the model is another feature; what is no model is an error.
    std::fs::write(folder.path().join("preprocessor_config.json"), r#"{"image_mean": [0, 0, 0]}"#).unwrap();
    assert_ne!(Extractor::open(&model).unwrap().extract_image(&picture).unwrap(), golden);
    assert!(matches!(extractor.extract_text("play"), Err(hetal_features::Error::Kind { reads: "pictures", .. })));
    std::fs::write(&model, "no model").unwrap();
    assert!(Extractor::open(&model).err().unwrap().to_string().contains("is no ONNX model"));
}

#[cfg(feature = "onnx")]
#[test]
fn onnx_models_of_sentences_agree_with_onnxruntime() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let model = folder.path().join("model.onnx");
    std::fs::write(&model, include_bytes!("golden/tokens.onnx")).unwrap();
    let golden: Vec<f32> = serde_json::from_str(include_str!("golden/tokens.json")).unwrap();
    let extractor = Extractor::open(&model).unwrap();
    assert!(extractor.reads_text() && extractor.identity().files.contains_key("tokenizer.json"));
    // Sentences of other lengths before it change nothing.
    let found = extractor.extract_texts(&["the weather", "play some jazz"]).unwrap();
    assert_near(&found[1], &golden, 1e-6);
    assert_eq!((extractor.identity().columns, extractor.tokens("play").unwrap().reading), (6, TextCoverage::All));
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(Extractor::open(&model).err().unwrap().to_string().contains("tokenizer.json"));
}
