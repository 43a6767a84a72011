// Package codec turns a folded request and the objects that it references into the exact HTTP body for one vendor.
//
// A codec is a pure function with a versioned name such as deepseek-chat/1, which every llm/stream event records. A
// change of its output is a new version; old versions stay, so that old requests can still be rebuilt.
//
// Bodies are append-only: as long as model, system prompt and surface are not rewritten, the body of a request
// starts with the bytes of the one before, up to the end of its messages. A [Builder] keeps that prefix and the
// running SHA-256 over it, so a step costs in proportion to what is new. A fresh builder gives the same bytes.
package codec
