// What the page shows: the status of the control plane, joined with what the console adds.

// leadership says which control plane plans; "" where there is only one.
function leadership(planner) {
  if (!planner.shared) return "";
  const self = `this control plane, ${planner.self},`;
  if (planner.leads) return `${self} plans`;
  return planner.holder ? `${self} follows ${planner.holder}` : `${self} follows, and none leads`;
}

function replica(r, stage) {
  const engine = r.engine_load?.capacity_tokens > 0; // it counts itself
  return {
    ...r, stage, reason: r.health_reason || r.note, report_age_seconds: r.report_age_seconds ?? -1,
    held: engine ? r.engine_load.kv_used_tokens : r.held_tokens, capacity: engine ? r.engine_load.capacity_tokens : r.capacity_tokens,
  };
}

function model(m, more) {
  return {
    ...m, ...more, pinned: m.pinned ? `plan ${m.pinned.epoch} by ${m.pinned.by || "an operator"}` : "",
    stages: m.stages.map((s) => ({ ...s, ...s.reason, known: s.reason !== undefined, replicas: s.replicas.length })),
    replicas: [...m.stages.flatMap((s, i) => s.replicas.map((r) => replica(r, i))), ...(m.unassigned ?? []).map((r) => replica(r, -1))],
  };
}

function proxy(n) {
  const pending = Object.values(n.types ?? {}).reduce((sum, type) => sum + type.pending, 0);
  return { ...n, pending, reason: n.last_error && !n.current ? n.last_error : n.reason };
}

export function read({ status, advice, models, ...more }) {
  return {
    ...status, ...more, state: status.verdict, leadership: leadership(status.planner),
    faults: (status.faults ?? []).map((f) => ({ ...f, ...advice[f.kind] })),
    models: status.models.map((m, i) => model(m, models[i])),
    proxies: status.nodes.map(proxy),
    rollout: status.groups.filter((g) => g.reason && g.nodes > 0).map((g) => `plan ${g.published_epoch}, ${g.nodes} proxies: ${g.reason}`),
  };
}
