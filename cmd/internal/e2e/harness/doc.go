// Package harness runs fleets of processes in tests, and their clients.
//
//   - Daemons: a test binary ends its TestMain with Main, which builds the command line unless another test binary has,
//     and starts each daemon with Command.Start: the real binary, real sockets, signals, and what the kernel knows of
//     the process. A daemon ends with its test at the latest, and with the test process in any case.
//   - Clients: a test fills in Clients and calls its methods: streams, loads and operators' commands. Every text that a
//     client reads is compared with the oracle's, an engine of the same model that serves no other requests: a token
//     that is lost, duplicated or computed from wrong KV changes the text.
//   - RunIsolated runs a test in network and mount namespaces of its own, for programs that listen at fixed ports of
//     all addresses, or read fixed paths. A test calls it first, and returns where it reports false: then the test has
//     run in another process, which has no network but loopback, and whose mounts nothing else sees.
package harness
