// Package prefix knows which prompts' beginnings replicas hold in their KV caches.
//
// An Index is what one engine holds, exactly, from the KV events that the engine publishes
// (Store, Remove, Clear), or approximately, from the prompts that it was sent (Add). A Summary
// is a sketch of an Index, a few kilobytes long, that other replicas get. Texts finds the
// chain hashes of a prompt from its text, as far as it has seen text and token ids of prompts
// together.
//
// All of them speak of prefixes by chain hashes of their token ids (Hash). What they say is
// a hint: a prefix that is not found costs a computation that was not needed, and one that is
// found but gone costs nothing more.
//
// Nothing here is safe for concurrent use, but methods that only read may be called at the
// same time.
package prefix
