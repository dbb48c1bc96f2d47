"""A fifth hundred messages, written before any model was asked about them.

Fifty ordinary ones and fifty scams of today in fifteen languages. Nothing is tuned to them, and
they may not be changed: once a model has been asked, they only say whether it may be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ORDINARY: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        (
            "Hello, I saw your oak desk on the noticeboard. Is £85 your final price, and could"
            " you hold it until Saturday? I can pay cash and collect with a van."
        ),
        (
            "Running ten minutes late, the 43 broke down at the bridge. Start without me and"
            " save me one of the rolls."
        ),
        (
            "Subject: Minutes of Tuesday's allotment meeting\n\nDear all,\n\nPlease find the"
            " minutes below. The water butt by plot 12 leaks and Graham will mend it. Rent for"
            " next year stays at £46. The next meeting is on 9 May at half past seven.\n\nBest"
            " wishes,\nSheila"
        ),
        (
            "Your verification code for Tidewell is 580 214. It expires in 10 minutes. We will"
            " never ask you for it."
        ),
        (
            "Thanks for the quote. Before we order 200 mugs: does the price include printing"
            " on both sides, and what would shipping to Leeds cost?"
        ),
        (
            "Has anyone got lecture 7 working offline? The player asks me to log in again"
            " whenever the train goes through a tunnel."
        ),
        (
            "Great video! At 4:12 you say the glue dries in an hour, mine needed the whole"
            " night. Is that because of the cold garage?"
        ),
        (
            "Parkside Dental: your hygienist visit on Wed 12 June at 15:20 is confirmed. Reply"
            " C if you need to change it."
        ),
    ),
    "de": (
        (
            "Kannst du auf dem Heimweg noch Hefe mitbringen? Ich habe den Teig schon angesetzt"
            " und gemerkt, dass keine mehr da ist."
        ),
        (
            "Guten Tag, was würde der Einbau von drei Innentüren bei Ihnen kosten, und hätten"
            " Sie im September noch Zeit? Die Zargen sind schon vorhanden. Mit freundlichen"
            " Grüßen, A. Wenzel"
        ),
        (
            "Stadtwerke: Am Donnerstag wird in der Lindenstraße zwischen 8 und 12 Uhr der"
            " Wasserzähler getauscht. Bitte sorgen Sie dafür, dass der Keller zugänglich ist."
        ),
    ),
    "fr": (
        (
            "On se retrouve devant la piscine à 14 h ? Prends deux euros pour le casier, la"
            " machine ne rend pas la monnaie."
        ),
        (
            "Bonjour, votre commande de livres est arrivée à la librairie des Halles. Nous la"
            " gardons jusqu'au 28 ; nous sommes ouverts du mardi au samedi."
        ),
        (
            "Le conseil syndical propose de refaire la cage d'escalier en octobre. Trois devis"
            " sont joints, on vote à l'assemblée du 17."
        ),
    ),
    "es": (
        (
            "¿Te acuerdas de cómo se llamaba aquel restaurante de Cádiz? El de las"
            " tortillitas, al lado del mercado. Vamos con mis suegros el finde."
        ),
        (
            "Le informamos de que su cita para renovar el DNI es el 21 de mayo a las 9:45 en"
            " la comisaría de la calle Prado. Traiga una foto reciente."
        ),
        (
            "Profe, no me deja subir la práctica 3 al aula virtual, dice que el archivo pesa"
            " demasiado. ¿Se la puedo mandar por correo?"
        ),
    ),
    "it": (
        (
            "Stasera porto io il dolce, voi pensate al vino. Marta non mangia noci, quindi"
            " faccio la crostata."
        ),
        (
            "Gentile cliente, il suo ombrello dimenticato al banco è custodito in portineria."
            " Può ritirarlo dalle 8 alle 18."
        ),
        (
            "Qualcuno sa se la palestra resta aperta il 2 giugno? Sul sito non c'è scritto"
            " niente e al telefono non rispondono."
        ),
    ),
    "nl": (
        (
            "De vergadering van morgen is verplaatst naar lokaal 2.14 omdat de beamer boven"
            " stuk is. Tijd blijft hetzelfde."
        ),
        (
            "Hoi buuf, er ligt een pakje voor je bij ons, de bezorger kreeg je niet te pakken."
            " Kom gerust na zessen langs."
        ),
        (
            "Beste ouders, vrijdag gaan we met groep 5 naar het bos. Wilt u laarzen en een"
            " lunch meegeven? De kinderen zijn om drie uur terug."
        ),
    ),
    "pt": (
        (
            "Consegui os bilhetes para o concerto, ficámos na fila 12. Depois acertamos as"
            " contas, são 18 euros cada."
        ),
        (
            "Bom dia, a revisão do carro ficou pronta. Trocamos o óleo e o filtro, total de R$"
            " 380. Pode buscar até as 18h."
        ),
        (
            "Gente, a aula de quinta vai ser na sala 4 porque a 2 está em obra. Avisem quem"
            " não está no grupo."
        ),
    ),
    "pl": (
        ("Mamo, kupiłem bilet na 16:05, będę na dworcu koło ósmej. Nie musisz po mnie wychodzić."),
        (
            "Dzień dobry, czy cena 450 zł za rower jest ostateczna? Chętnie obejrzałbym go w"
            " sobotę przed południem."
        ),
        (
            "Przychodnia Słoneczna przypomina o wizycie u okulisty 6 marca o godz. 10:30."
            " Prosimy zabrać okulary."
        ),
    ),
    "ru": (
        ("Поезд прибыл вовремя, уже едем в гостиницу. Вечером позвоню, когда дети улягутся."),
        (
            "Коллеги, отчёт за квартал лежит в общей папке. Посмотрите таблицу на третьей"
            " странице, там не сходятся итоги по Самаре."
        ),
        (
            "Подскажите, сколько стоит заменить экран на этом телефоне и есть ли деталь в"
            " наличии? Могу подъехать в четверг."
        ),
    ),
    "uk": (
        ("Привіт! Забери, будь ласка, малого з садочка о п'ятій, я затримаюся на нараді."),
        (
            "Бібліотека на Садовій нагадує: книжку «Тигролови» потрібно повернути або"
            " продовжити до 14 квітня."
        ),
        (
            "А хтось пробував варити вишневе варення без кісточок у мультиварці? Скільки цукру"
            " на кілограм?"
        ),
    ),
    "tr": (
        (
            "Annem çorbayı ocakta unutmuş, eve gidince altını kapatır mısın? Ben yarım saate"
            " çıkıyorum."
        ),
        (
            "Sayın veli, perşembe günkü gezi için izin kâğıdını imzalayıp öğretmene veriniz."
            " Çocuklar öğle yemeğini yanında getirecek."
        ),
        ("Merhaba, ilandaki kitaplık hâlâ duruyor mu? 900 liraya olur mu, yarın akşam alabilirim."),
    ),
    "vi": (
        ("Tối nay nhà mình ăn lẩu nhé, em mua rau rồi, anh ghé lấy thêm ít nấm."),
        (
            "Máy giặt của anh còn bảo hành đến tháng 11. Thợ sẽ qua kiểm tra vào sáng thứ Năm,"
            " anh nhớ giữ phiếu."
        ),
        (
            "Thầy ơi, em xin nghỉ buổi học chiều mai vì em phải đưa mẹ đi khám bệnh. Em sẽ"
            " chép bài của bạn ạ."
        ),
    ),
    "ja": (
        ("明日の練習は雨のため体育館に変更です。上履きを忘れないでください。"),
        ("お母さん、駅に着いたよ。夕飯はカレーがいいな。"),
        (
            "お見積もりありがとうございます。椅子を12脚注文する場合、送料込みでおいくらになりますか。"
        ),
    ),
    "zh": (
        ("下午三点的会改到二楼小会议室,投影仪我已经借好了,你把上周的数据带来就行。"),
        ("请问这个书架还在吗?一百五十元可以的话,我周六上午过来拿。"),
        ("妈,我到学校了,宿舍很干净,室友也都挺好的,你别担心。"),
    ),
    "hi": (
        ("भैया, कल सुबह दूध दो लीटर देना, घर पर मेहमान आ रहे हैं।"),
        ("कक्षा 8 की विज्ञान परीक्षा सोमवार को दस बजे होगी। कृपया अपना पहचान पत्र साथ लाएँ।"),
        ("दीदी, मैंने खीर की विधि लिख ली है, बस यह बता दो कि चावल कितनी देर भिगोने हैं?"),
    ),
}

SCAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        (
            "Subject: Action required: your mailbox will be closed\n\nDear user,\n\nYour"
            " mailbox has reached 98 % of its storage. Incoming messages are being held on the"
            " server. To avoid losing them, confirm your password within 24"
            " hours:\n\nhttps://webmail-quota-update.site/login\n\nIT Service Desk"
        ),
        (
            "Hello site owner, we place guest posts on 3,000 real blogs with DA 50+. Get your"
            " website to page one of Google in 30 days or your money back. Packages from $99."
            " Reply with your keywords for a free audit."
        ),
        (
            "DVLA: your vehicle tax payment was declined. Update your bank details today to"
            " avoid a £1,000 fine: dvla-tax-renewal.online"
        ),
        (
            "Hi love, it's me, I dropped my phone in the sink, this is my temporary number. I"
            " need to pay a bill by 5, could you transfer £720? I'll pay you back on Friday x"
        ),
        (
            "We hacked your device and recorded you through your camera. Send $1,400 in"
            " bitcoin to the wallet below within 48 hours or the video goes to all your"
            " contacts."
        ),
        (
            "Congrats @everyone! The first 500 wallets to connect get 2 free mystery NFTs,"
            " mint is live for 20 minutes only: freemint-apedrop.xyz"
        ),
        (
            "My mentor Mrs Evelyn Grant trades for me, I put in $500 and cashed out $6,200 in"
            " one week. Write to her on WhatsApp +1 (302) 555-0119, she is honest."
        ),
        (
            "Amazon HR: remote assistant wanted, 60 to 90 minutes a day, $200 to $450 daily,"
            " no experience. Add our manager on Telegram to start: t.me/amz_parttime_hr"
        ),
    ),
    "de": (
        (
            "DHL: Ihr Paket kann wegen fehlender Hausnummer nicht zugestellt werden. Bitte"
            " bestätigen Sie Ihre Adresse und zahlen Sie 1,99 €: https://dhl-zustellung-neu.com"
        ),
        (
            "Sparkasse: Ihr pushTAN-Zugang läuft heute ab. Verlängern Sie ihn jetzt, sonst"
            " wird Ihr Konto gesperrt: sparkasse-tan-verlaengern.info"
        ),
        (
            "Hallo Papa, mein Handy ist in die Waschmaschine gefallen. Das ist meine neue"
            " Nummer, schreib mir bitte bei WhatsApp. Ich muss dringend eine Rechnung"
            " überweisen."
        ),
    ),
    "fr": (
        (
            "Votre compte CPF va expirer. Utilisez vos 2 400 € de formation avant ce soir,"
            " appelez le conseiller ou cliquez ici : mon-cpf-droits.com"
        ),
        (
            "Mondial Relay : votre colis est bloqué au dépôt, réglez 1,45 € de frais pour une"
            " nouvelle livraison : https://relay-suivi-colis.net"
        ),
        (
            "Bonjour, je suis Madame Lefort, atteinte d'une maladie grave. Je souhaite faire"
            " don de 850 000 € à une personne honnête. Contactez mon notaire par mail."
        ),
    ),
    "es": (
        (
            "Santander: hemos detectado un cargo de 899 € en su tarjeta. Si no lo reconoce,"
            " anúlelo aquí: https://santander-anular-cargo.com"
        ),
        (
            "¡Enhorabuena! Su número ha ganado una tarjeta regalo de 500 € de Mercadona."
            " Responda a la encuesta y pague solo 2 € de gastos: premio-merca.shop"
        ),
        (
            "Gana 300 € al día viendo vídeos desde casa, sin experiencia y con pagos diarios."
            " Plazas limitadas, escribe por WhatsApp al +34 600 000 187."
        ),
    ),
    "it": (
        (
            "INPS: hai diritto a un rimborso di 468,20 €. Compila il modulo con i dati della"
            " tua carta entro oggi: inps-rimborso-online.com"
        ),
        (
            "Poste Italiane: il tuo conto è stato limitato per motivi di sicurezza. Verifica"
            " la tua identità: https://poste-verifica-conto.info"
        ),
        (
            "Ciao mamma, ho perso il telefono, questo è il mio nuovo numero. Puoi farmi un"
            " bonifico di 950 euro? È urgente, ti spiego dopo."
        ),
    ),
    "nl": (
        (
            "ING: uw betaalpas verloopt morgen. Vraag direct een nieuwe pas aan om blokkade te"
            " voorkomen: ing-pas-aanvragen.com"
        ),
        (
            "U heeft een openstaande boete van het CJIB van € 87. Betaal vandaag nog om"
            " beslaglegging te voorkomen: https://cjib-betalen.online"
        ),
        (
            "Verdien € 250 per dag met het liken van video's, geen ervaring nodig. Stuur"
            " 'START' via WhatsApp naar +31 6 00000143."
        ),
    ),
    "pt": (
        (
            "CTT: a sua encomenda está retida na alfândega. Pague 2,14 € de taxas em"
            " ctt-alfandega-pagar.com para evitar a devolução."
        ),
        (
            "Oi mãe, troquei de número, salva esse aqui. Preciso pagar um boleto de R$ 1.850"
            " agora e o app do banco travou. Faz um Pix pra mim?"
        ),
        (
            "Nubank: compra de R$ 2.349,90 aprovada. Não reconhece? Ligue agora para 0800 000"
            " 0142 e cancele."
        ),
    ),
    "pl": (
        (
            "InPost: Twoja paczka została wstrzymana z powodu niedopłaty 1,20 zł. Dopłać"
            " teraz: inpost-doplata24.com"
        ),
        (
            "PGE: na dziś zaplanowano odłączenie energii elektrycznej. Ureguluj należność 6,43"
            " zł: https://pge-platnosc-online.net"
        ),
        (
            "Zarabiaj 5000 zł tygodniowo na inwestycjach w Baltic Pipe. Wystarczy 900 zł na"
            " start, zysk gwarantowany. Zostaw numer telefonu, doradca oddzwoni."
        ),
    ),
    "ru": (
        (
            "Ваша карта заблокирована из-за подозрительной операции на 14 500 руб. Срочно"
            " позвоните в службу безопасности банка: 8 800 000-01-42"
        ),
        (
            "Нужны люди на удалёнку, 2-3 часа в день, от 300$ в неделю. Всё легально, обучим с"
            " нуля. Пиши + в личку"
        ),
        (
            "Госуслуги: вам начислена выплата 12 400 ₽. Получите до конца дня по ссылке:"
            " gosuslugi-viplata.site"
        ),
    ),
    "uk": (
        (
            "Допомога від ООН 10 800 грн кожному! Оформіть виплату на картку зараз:"
            " https://oon-dopomoga-ua.site"
        ),
        (
            "Укрпошта: вашу посилку не доставлено, адреса неповна. Оновіть дані та сплатіть 12"
            " грн: ukrposhta-adresa.top"
        ),
        (
            "Робота вдома, від 2500 грн на день, лише ставити лайки. Без досвіду, виплати"
            " щодня. Пишіть у телеграм @robota_like_ua"
        ),
    ),
    "tr": (
        (
            "Sayın müşterimiz, kredi kartı aidat iadeniz 1.850 TL hazır. Hemen alın:"
            " kart-aidat-iade.com"
        ),
        (
            "Tebrikler! 1000 TL deneme bonusu hesabınıza tanımlandı, çevrim şartsız. Üye olmak"
            " için: bahisvip724.com"
        ),
        (
            "HGS borcunuz nedeniyle yasal işlem başlatılacaktır. 24 saat içinde ödeyin:"
            " hgs-borc-sorgula.net"
        ),
    ),
    "vi": (
        (
            "Tuyển cộng tác viên online chốt đơn Shopee, thu nhập 500k-1 triệu/ngày, chỉ cần"
            " điện thoại. Kết bạn Zalo 0900 000 142 để nhận việc."
        ),
        (
            "Ngân hàng VCB: tài khoản của quý khách bị khóa do đăng nhập lạ. Xác minh ngay tại"
            " vcb-digibank-vn.com"
        ),
        (
            "Chúc mừng! Số của bạn trúng thưởng xe SH và 100 triệu đồng. Nộp phí hồ sơ 2 triệu"
            " để nhận giải trong hôm nay."
        ),
    ),
    "ja": (
        (
            "【重要】お客様のアカウントで異常なログインが検出されました。24時間以内にこちらで本人確認を行ってください:"
            " https://amazon-co-jp-kakunin.top"
        ),
        ("スマホだけで日給5万円!初心者大歓迎、即日払い。興味のある方はLINEを追加してください。"),
        (
            "お荷物をお届けしましたが不在のため持ち帰りました。下記よりご確認ください。"
            " http://sagawa-saihaitatsu.xyz"
        ),
    ),
    "zh": (
        ("【ETC】您的ETC卡已停用,请于今日内点击 etc-renzheng.top 重新认证,逾期将无法使用。"),
        ("招兼职,手机点赞刷单,一单5到50元,日结300以上,加微信 wz880142 了解。"),
        ("老师带你炒股,内部消息,稳赚不赔,上周收益38%。名额有限,扫码进群领取牛股。"),
    ),
    "hi": (
        (
            "प्रिय ग्राहक, आपका बिजली कनेक्शन आज रात 9:30 बजे काट दिया जाएगा। तुरंत अधिकारी को"
            " कॉल करें: 90000 00142"
        ),
        (
            "बधाई हो! KBC लॉटरी में आपका नंबर 25 लाख रुपये जीत गया है। इनाम पाने के लिए"
            " व्हाट्सएप पर मैनेजर से बात करें।"
        ),
        ("आपका SBI खाता ब्लॉक हो गया है। KYC अपडेट करने के लिए यहाँ क्लिक करें: sbi-kyc-update.in.net"),
    ),
}
