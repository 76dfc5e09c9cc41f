"""An ONNX graph with int8 weights: about a quarter of the size, and faster where it counts.

    model.onnx    MatMul of float32 [S, H] and float32 [H, 4H]
    ->            DynamicQuantizeLinear, MatMulInteger of uint8 [S, H] and int8 [H, 4H], scaled back

Matrices and embeddings are stored as int8, with a scale per column. Activations are quantized while
the graph runs, so no text is needed to calibrate them.
"""

from pathlib import Path

from clozeline.train.artifacts.onnx_folder import import_package, quiet_logs


def quantize_graph(path: Path) -> None:
    """Give a graph int8 weights, in place. Raises InputError where a package is missing."""
    quantization = import_package("onnxruntime.quantization")
    smaller = path.with_name(f"int8-{path.name}")
    with quiet_logs(""):  # its advice to optimize the graph first, which the exporter has done
        quantization.quantize_dynamic(
            path,
            smaller,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            # 7 bits: with 8, a sum of two products saturates on processors without VNNI.
            reduce_range=True,
        )
    smaller.replace(path)
