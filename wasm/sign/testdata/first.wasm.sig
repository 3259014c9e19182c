{
  "format": "cascade-policy-signature/1",
  "statement": {
    "sha256": "93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476",
    "abi": "cascade-policy/1",
    "name": "my-refiner",
    "version": "1.2.0-rc.1",
    "kinds": [
      {
        "kind": "refine",
        "fuel": 5000000,
        "micros": 20000,
        "pages": 128
      },
      {
        "kind": "guard",
        "fuel": 0,
        "micros": 0,
        "pages": 0
      }
    ],
    "not_after": 1790000000,
    "generation": 1763721600
  },
  "signatures": [
    {
      "key": "34750f98bd59fcfc",
      "signature": "GYK80nj53uwhLKrHLXUTytjmjftATDO24OCoct3hGM9aZUFVIjUyGQ9UoM9GWBsm2k1ymXJ55nlSvNEduMFDCA=="
    },
    {
      "key": "6a3803d5f059902a",
      "signature": "nsY/6whzh9n2xX07hScMJZ7tH9eUozqSDrn4lfiBqIoln7Am6X6UOvQUA0HD4sQp2pRyJncKRz1BKqnkv/jFCA=="
    }
  ]
}
