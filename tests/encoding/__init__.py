"""How keys and values become bytes and come back: canonical keys, codecs, records, serializers, arrays."""
