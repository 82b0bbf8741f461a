"""The float ONNX graph: operators, quantization sites, the Q/DQ writer; capture/ and passes/ beneath."""
