"""The matrix of codecs: every serializer with every compressor, on values of several kinds and sizes."""
