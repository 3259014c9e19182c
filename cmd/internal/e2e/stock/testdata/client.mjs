// Asks one question of each kind with openai-node and prints the answers as JSON.
//
//     node client.mjs BASE_URL
import OpenAI from 'openai'

const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'none', maxRetries: 0 })
const messages = [{ role: 'system', content: 'ba ko' }, { role: 'user', content: 'lu mi za' }]
const greedy = { model: 'tiny', temperature: 0, ignore_eos: true, max_tokens: 20 }
const answers = {}

answers.models = (await client.models.list()).data.map((m) => m.id)
answers.completion = (await client.completions.create({ ...greedy, prompt: 'ba ko lu' })).choices
answers.chat = (await client.chat.completions.create({ ...greedy, messages })).choices
answers.completionStream = ''
for await (const chunk of await client.completions.create({ ...greedy, prompt: 'ba ko lu', stream: true })) answers.completionStream += chunk.choices[0].text
answers.chatStream = ''
let usage
for await (const chunk of await client.chat.completions.create({ ...greedy, messages, stream: true, stream_options: { include_usage: true } })) {
  answers.chatStream += chunk.choices[0]?.delta.content ?? ''
  usage = chunk.usage
}
answers.usage = [usage.prompt_tokens, usage.completion_tokens]
answers.helper = await client.chat.completions.stream({ ...greedy, messages }).finalContent()
answers.together = await Promise.all([...Array(12).keys()].map(async (i) => {
  let text = ''
  for await (const chunk of await client.completions.create({ ...greedy, prompt: `ba ${i} ko`, stream: true })) text += chunk.choices[0].text
  return text
}))
try {
  await client.completions.create({ prompt: 'ba', model: 'other' })
} catch (e) {
  answers.unknownModel = [e.constructor.name, e.status, e.error]
}
// A client that leaves a stream: the engine must stop.
const left = await client.completions.create({ ...greedy, max_tokens: 3000, prompt: 'ba ko', stream: true })
for await (const chunk of left) break
console.log(JSON.stringify(answers, null, 1))
