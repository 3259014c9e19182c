package model

// wordList is the vocabulary of generated text: plain English words that are one token each with a
// space before them. It is curated, because a vocabulary learnt from the web has words that do
// not belong in a demo.
const wordList = `
 able about above accept across action active actual add advance after again age agree air align allow almost
 alone along already also although always among amount ancient angle animal annual answer apart appear apple apply
 area around arrange arrive art ask autumn average away balance band base basic basket beach bear beautiful become
 before begin behind below bench beside best better between beyond big bird black blue board boat body book border
 both bottom bread break breath bridge bright bring broad brother brown brush build busy butter calm camera canal
 candle capital care carry case castle cause cell center central century certain chain chair chance change chapter
 choose circle city class clean clear climate clock close cloud coast code coffee cold collect color column common
 compare complete concept connect consider contain continue control cook copper copy core corner correct cost
 cotton count country couple courage course cover craft create cross crowd culture current curve cycle daily
 danger data day deal decide deep degree delay deliver depend describe desert design detail develop different
 direct discover distance divide door double draw dream drive dry during dust each early earth east easy edge
 effect effort eight either electric else empty end energy engine enjoy enough enter equal evening event every
 exact example except expect explain extend eye face fact fair fall family famous far farm fast father feature
 feel field figure fill final find fine fire first fish five flat floor flow flower fly focus follow food force
 forest form forward four frame free fresh friend front fruit full future garden gate gather general gentle give
 glass global gold good grand grass great green ground group grow guide habit half hall hand harbor hard head
 hear heart heat heavy height help high hill history hold home hope horizon horse hot hour house however human
`
