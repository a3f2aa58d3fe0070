"""GGUF models through llama.cpp, in a process of their own."""
